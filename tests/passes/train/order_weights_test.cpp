#include "ir/kept_copies.h"
#include "ir/plan/serialize.h"
#include "passes/add_lengths.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/evaluator.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/kept_states.h"
#include "tests/support/samples.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

#include <map>

// Weights of convolutions that are stored with channels last.

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

void check_copy(Session& session, llvm::StringRef name) {
  const Tensor copy = copy_of(session, name.str() + ".bf16");
  CHECK(copy.type().dtype == DType::BF16);
  CHECK(is_rounded(copy, copy_of(session, name)));
}

// How many of the plan's states have channels last.
int64_t turned_states(const Plan& plan) {
  return llvm::count_if(plan.states, [](const PlanState& state) { return state.channels_last; });
}

TEST_SUITE("e2e") {
  TEST_CASE("weights with channels last: steps turn no weights, to the same bits") {
    const RandomValues values = values_for();
    for (const OptimizerKind optimizer : {OptimizerKind::AdamW, OptimizerKind::Sgd})
      for (const int64_t accumulate : {1, 2}) {
        CAPTURE(accumulate);
        const TrainingRequest request = request_for(optimizer, accumulate);
        const Plan made = plan_with_transposes(request), kept = planned(request);
        CHECK(transposes_of_weights(made) == 4);
        CHECK(transposes_of_weights(kept) == 0);
        const int64_t of_each = (optimizer == OptimizerKind::AdamW ? 4 : 2) + (accumulate > 1 ? 1 : 0);
        CHECK(turned_states(kept) == 2 * of_each);
        CHECK(kept.predicted_step_us < made.predicted_step_us);
        std::unique_ptr<Session> session = started(kept, values);
        for (llvm::StringRef name : {"a.weight", "b.weight"}) check_copy(*session, name);
        const std::vector<double> losses = losses_of_steps(*session, values, 4);
        for (llvm::StringRef name : {"a.weight", "b.weight"}) check_copy(*session, name);
        CHECK(losses == losses_of_steps(*started(made, values), values, 4));
        CHECK(losses[3] < losses[0]);
      }
  }

  TEST_CASE("weights with channels last: checkpoints are in the model's order, and either plan goes on from them") {
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

  TEST_CASE("weights with channels last: gradients are handed out in the model's order") {
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

  TEST_CASE("weights with channels last: they are drawn as those of a plan in the model's order") {
    std::unique_ptr<Session> one = started(plan_with_transposes(request_for()), values_for()),
                             other = started(planned(request_for()), values_for());
    for (const double deviation : {0.0, 0.02}) {
      REQUIRE_FALSE(bool(one->initialise_randomly(3, deviation)));
      REQUIRE_FALSE(bool(other->initialise_randomly(3, deviation)));
      for (llvm::StringRef name : {"a.weight", "b.weight"}) {
        check_copy(*other, name);
        CHECK(copy_of(*one, name) == copy_of(*other, name));
      }
    }
  }

  TEST_CASE("weights with channels last: evaluation reads them, and their running means, as they are stored") {
    const RandomValues values = values_for();
    for (const double ema : {0.0, 0.9}) {
      CAPTURE(ema);
      TrainingRequest request = request_for();
      request.ema = ema;
      request.evaluation.wanted = true;
      request.evaluation.batch = 4;
      const Plan plans[] = {plan_with_transposes(request), planned(request)};
      CHECK(turned_states(plans[1]) == (ema > 0 ? 10 : 8));
      CHECK(transposes_of_weights(plans[1]) == 0);
      std::vector<double> losses;
      for (const Plan& plan : plans) {
        std::unique_ptr<Session> session = started(plan, values);
        losses_of_steps(*session, values, 3);
        Evaluator evaluator = llvm::cantFail(Evaluator::create(*session));
        Samples data(values, evaluator.inputs(), 4);
        losses.push_back(llvm::cantFail(evaluator.run(data)).find("loss")->value);
      }
      CHECK(losses[0] == losses[1]);
    }
  }

  TEST_CASE("weights with channels last: a step for shorter samples reads them as the plan stores them") {
    std::string shorter = model.str();
    for (size_t at = 0; (at = shorter.find("[4,", at)) != std::string::npos;) shorter.replace(at, 3, "[2,");
    for (llvm::StringRef labels : {"labels: i64[4]", "f32[], f32[4], f32[]"}) {
      const size_t at = shorter.find(labels.str());
      shorter.replace(at + labels.find("[4]"), 3, "[2]");
    }
    const CpuCatalog catalog;
    const StageDevices devices(cpu_device(), catalog);
    const TrainingRequest request = request_for();
    Result<Plan> both =
        add_shorter_step(llvm::cantFail(clean_model(parsed(shorter), "")), 2, request, devices, planned(request));
    REQUIRE_MESSAGE(bool(both), llvm::toString(both.takeError()));
    CHECK(turned_states(*both) == 8);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("weights with channels last: plan files say which states have them") {
    const Plan plan = planned(request_for()),
               read = llvm::cantFail(plan_from_bytes(llvm::cantFail(plan_to_bytes(plan))));
    CHECK(turned_states(plan) == 8);
    REQUIRE(read.states.size() == plan.states.size());
    for (size_t i = 0; i < plan.states.size(); ++i) CHECK(read.states[i].channels_last == plan.states[i].channels_last);
  }

  TEST_CASE("weights with channels last: plans whose copy has another order than its parameter are refused") {
    Plan plan = planned(request_for());
    CHECK(failure_of(plan) == "");
    for (PlanState& state : plan.states)
      if (is_kept_copy(state.role, state.init) && state.init.source == "b.weight") state.channels_last = false;
    CHECK(failure_of(plan) ==
          "plan: b.weight.bf16 and b.weight, of which it is a copy, have channels in different places");
  }

  TEST_CASE("weights with channels last: plans in which a matrix has them are refused") {
    Plan plan = planned(request_for());
    for (PlanState& state : plan.states)
      if (state.init.source == "head") state.channels_last = true;
    CHECK(failure_of(plan) == "plan: head is f32[5,16], and has channels last");
  }
}

}  // namespace
}  // namespace plimsoll
