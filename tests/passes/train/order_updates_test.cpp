#include "ir/kept_copies.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/kept_states.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

#include <map>

// Updates that read gradients and write copies of convolutions' weights with channels last.

namespace plimsoll {
namespace {

using namespace testing;

// The first weight has as many channels as its kernel has rows and columns, so that both orders have one shape.
constexpr llvm::StringLiteral model = R"(
graph @net(%x: f32[4,3,8,8], %labels: i64[4]) state(%a.weight: f32[8,3,3,3] parameter trained, %b.weight: f32[16,8,3,3] parameter trained, %head: f32[5,16] parameter trained) {
  %h = conv(%x, %a.weight) {dilations=[1,1], groups=1, pads=[1,1,1,1], strides=[1,1]} : f32[4,8,8,8]
  %g = relu(%h) : f32[4,8,8,8]
  %k = conv(%g, %b.weight) {dilations=[1,1], groups=1, pads=[1,1,1,1], strides=[2,2]} : f32[4,16,4,4]
  %r = silu(%k) : f32[4,16,4,4]
  %p = reduce_mean(%r) {axes=[2,3], keep_dims=0} : f32[4,16]
  %y = linear(%p, %head) {transpose_w=1} : f32[4,5]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";

TrainingRequest request_for(OptimizerKind optimizer = OptimizerKind::AdamW, int64_t accumulate = 1) {
  TrainingRequest request;
  request.precision = "bf16";
  request.layout = ImageLayout::ChannelsLast;
  request.optimizer.kind = optimizer;
  request.accumulate = accumulate;
  return request;
}

Plan planned(const TrainingRequest& request) { return compiled_plan(model, request); }

// The plan whose steps turn weights and gradients.
Plan plan_with_transposes(TrainingRequest request) {
  request.is_short = true;
  return planned(request);
}

// Of weights and of their gradients; images have a first dimension of 4.
int64_t transposes_of_weights(const Plan& plan) {
  int64_t found = 0;
  for (const PlanFunction& function : plan.functions)
    found += llvm::count_if(function.instructions, [&](const Instruction& each) {
      return each.op == "transpose" && plan.slots[static_cast<size_t>(each.operands[0])].type.shape[0] != 4;
    });
  return found;
}

RandomValues values_for() {
  RandomValues values;
  values.add_for(parsed(model));
  for (auto& [name, tensor] : values.tensors)
    if (is_float(tensor.type().dtype) && name != "x")
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, 0.2 * tensor.get(i));
  return values;
}

// The copy of a weight [rows, channels, 3, 3], which is [rows, 3, 3, channels].
void check_copy(Session& session, llvm::StringRef name) {
  const Tensor copy = copy_of(session, name.str() + ".bf16"), parameter = copy_of(session, name);
  const llvm::ArrayRef<int64_t> shape = parameter.type().shape;
  const int64_t rows = shape[0], channels = shape[1], taps = 9;
  Tensor rounded(Type(DType::BF16, {1}));
  bool is_right = copy.type().elements() == parameter.type().elements();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t t = 0; t < taps; ++t) {
        rounded.view().set(0, parameter.get((r * channels + c) * taps + t));
        is_right &= rounded.get(0) == copy.get((r * taps + t) * channels + c);
      }
  CHECK(is_right);
}

TEST_SUITE("e2e") {
  TEST_CASE("updates with channels last: steps turn no weights, to the same bits") {
    const RandomValues values = values_for();
    for (const OptimizerKind optimizer : {OptimizerKind::AdamW, OptimizerKind::Sgd})
      for (const int64_t accumulate : {1, 2}) {
        CAPTURE(accumulate);
        const TrainingRequest request = request_for(optimizer, accumulate);
        const Plan made = plan_with_transposes(request), kept = planned(request);
        CHECK(transposes_of_weights(made) == 4);
        CHECK(transposes_of_weights(kept) == (accumulate == 1 ? 0 : 2));  // gradients are added up in the model's order
        CHECK(kept.predicted_step_us < made.predicted_step_us);
        std::unique_ptr<Session> session = started(kept, values);
        for (llvm::StringRef name : {"a.weight", "b.weight"}) check_copy(*session, name);
        const std::vector<double> losses = losses_of_steps(*session, values, 4);
        for (llvm::StringRef name : {"a.weight", "b.weight"}) check_copy(*session, name);
        CHECK(losses == losses_of_steps(*started(made, values), values, 4));
        CHECK(losses[3] < losses[0]);
      }
  }

  TEST_CASE("updates with channels last: checkpoints are in the model's order, and either plan goes on from them") {
    const RandomValues values = values_for();
    const Plan plans[] = {plan_with_transposes(request_for()), planned(request_for())};
    std::vector<double> losses[2][2];
    for (size_t before : {0, 1}) {
      std::unique_ptr<Session> first = started(plans[before], values);
      losses_of_steps(*first, values, 2);
      const Kept kept(*first);
      for (size_t after : {0, 1}) {
        std::unique_ptr<Session> second = started(plans[after], values_for());
        llvm::cantFail(second->overwrite(kept.saved(2)));
        losses[before][after] = losses_of_steps(*second, values, 2);
        CHECK(losses[before][after] == losses[0][0]);
      }
    }
  }

  TEST_CASE("updates with channels last: gradients are handed out in the model's order") {
    const RandomValues values = values_for();
    std::map<std::string, Tensor> gradients[2];
    const Plan plans[] = {plan_with_transposes(request_for()), planned(request_for())};
    for (size_t i : {0, 1}) {
      std::unique_ptr<Session> session = started(plans[i], values);
      const GradientSink sink = [&](llvm::StringRef parameter, const Tensor& gradient) {
        gradients[i].emplace(parameter.str(), gradient);
        return Status::success();
      };
      OneBatch data(values, session->inputs());
      llvm::cantFail(session->step(data, &sink).takeError());
    }
    REQUIRE(gradients[0].size() == 3);
    for (const auto& [name, gradient] : gradients[0]) {
      CAPTURE(name);
      const Tensor& other = gradients[1].at(name);
      REQUIRE(other.type() == gradient.type());
      for (int64_t i = 0; i < gradient.type().elements(); ++i) CHECK(other.get(i) == gradient.get(i));
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("updates with channels last: plans whose copy has another order than its update writes are refused") {
    Plan plan = planned(request_for());
    CHECK(failure_of(plan) == "");
    for (PlanState& state : plan.states) {
      Slot& slot = plan.slots[static_cast<size_t>(state.slot)];
      if (is_kept_copy(state.role, state.init) && state.init.source == "b.weight") slot.type.shape = {16, 8, 3, 3};
    }
    CHECK(failure_of(plan) ==
          "plan: b.weight.bf16 is bf16[16,8,3,3] but a 16-bit copy of b.weight, f32[16,8,3,3], with channels last");
  }
}

}  // namespace
}  // namespace plimsoll
