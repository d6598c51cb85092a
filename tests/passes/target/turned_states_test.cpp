#include "ir/plan/check.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/packed_weights.h"
#include "tests/support/small_training.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

#include <cstring>

// Frozen weights in 8-bit floats whose transposes are states as well, so that no step makes them.

namespace plimsoll {
namespace {

using namespace testing;

// Three layers and a head; gradients of inputs want those of the second and of the third, one as the file has it.
constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[32,48], %labels: i64[32]) state(%a.weight: f32[64,48] parameter trained, %b.weight: f32[64,96] parameter trained, %c.weight: f32[48,96] parameter trained, %head: f32[16,48] parameter trained) {
  %h = linear(%x, %a.weight) {transpose_w=1} : f32[32,64]
  %g = gelu(%h) {approximate="none"} : f32[32,64]
  %m = linear(%g, %b.weight) : f32[32,96]
  %n = gelu(%m) {approximate="none"} : f32[32,96]
  %k = linear(%n, %c.weight) {transpose_w=1} : f32[32,48]
  %r = gelu(%k) {approximate="none"} : f32[32,48]
  %y = linear(%r, %head) {transpose_w=1} : f32[32,16]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[32], f32[]
  return loss=%loss
}
)";

constexpr int64_t all_turned = 1 << 30;

TrainingRequest request_for(int64_t turned_bytes) {
  TrainingRequest request;
  request.adapters.rank = 4;
  request.quantize.format = WeightFormat::FP8;
  request.quantize.turned_bytes = turned_bytes;
  request.precision = "fp8";
  return request;
}

Plan planned(const TrainingRequest& request) {
  const CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

std::vector<const PlanState*> transposes_of(const Plan& plan) {
  std::vector<const PlanState*> states;
  for (const PlanState& state : plan.states)
    if (state.init.kind == StateInit::Kind::TransposeOf) states.push_back(&state);
  return states;
}

// Transposes of 8-bit codes that steps make.
int64_t made_transposes(const Plan& plan) {
  int64_t found = 0;
  for (const PlanFunction& function : plan.functions)
    found += llvm::count_if(function.instructions, [&](const Instruction& each) {
      return each.op == "transpose" && plan.slots[static_cast<size_t>(each.operands[0])].type.dtype == DType::F8E4M3;
    });
  return found;
}

// Weights as layers have them at first, so that scores are of order 1.
RandomValues values_for(double weights = 0.15) {
  RandomValues values;
  values.add_for(parsed(model));
  for (auto& [name, tensor] : values.tensors)
    if (is_float(tensor.type().dtype) && name != "x")
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, weights * tensor.get(i));
  return values;
}

Tensor copy_of(Session& session, llvm::StringRef state) {
  Tensor copy;
  llvm::cantFail(session.read_state(state, [&](const TensorView& view) {
    copy = Tensor(view.type, view.data);
    return Status::success();
  }));
  return copy;
}

void check_transposes(Session& session) {
  for (const PlanState* state : transposes_of(session.plan())) {
    const std::string& name = session.plan().slots[static_cast<size_t>(state->slot)].name;
    CAPTURE(name);
    const Tensor codes = copy_of(session, state->init.source), turned = copy_of(session, name);
    const int64_t rows = codes.type().shape[0], columns = codes.type().shape[1];
    REQUIRE(turned.type() == Type(DType::F8E4M3, {columns, rows}));
    bool is_right = true;
    for (int64_t i = 0; i < rows * columns; ++i)
      is_right &= turned.get(i % columns * rows + i / columns) == codes.get(i);
    CHECK(is_right);
  }
}

std::vector<double> losses_of_steps(Session& session, const RandomValues& values, int steps) {
  OneBatch data(values, session.inputs());
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(llvm::cantFail(session.step(data)).loss);
  return losses;
}

// What a checkpoint has of a session's states.
struct Kept {
  std::map<std::string, Tensor> tensors;

  explicit Kept(Session& session) {
    for (const WholeState& state : session.whole_states())
      if (is_kept(state)) tensors.emplace(state.name, copy_of(session, state.name));
  }
  SavedStates saved(int64_t step) const {
    return {[this](const WholeState& state) { return tensors.count(state.name) > 0; },
            [this](const WholeState& state, int64_t first, const TensorView& into) {
              const Tensor& tensor = tensors.at(state.name);
              const int64_t size = dtype_bytes(tensor.type().dtype);
              std::memcpy(into.data, static_cast<const char*>(tensor.data()) + first * size,
                          static_cast<size_t>(into.type.bytes()));
              return Status::success();
            },
            step};
  }
};

std::string failure_of(const Plan& plan) {
  Status status = check_plan(plan);
  return status ? take_diag(std::move(status)).text() : "";
}

TEST_SUITE("e2e") {
  TEST_CASE("turned states: steps read them in place of transposes, to the same bits") {
    const RandomValues values = values_for();
    const Plan made = planned(request_for(0)), turned = planned(request_for(all_turned));
    CHECK(made_transposes(made) == 2);
    CHECK(transposes_of(made).empty());
    CHECK(made_transposes(turned) == 0);
    CHECK(transposes_of(turned).size() == 2);
    std::unique_ptr<Session> session = started(turned, values);
    check_transposes(*session);
    const std::vector<double> losses = losses_of_steps(*session, values, 4);
    CHECK(losses == losses_of_steps(*started(made, values), values, 4));
    CHECK(losses[3] < losses[0]);
  }

  TEST_CASE("turned states: parts of weights are asked for as without them") {
    const Plan made = planned(request_for(0)), turned = planned(request_for(all_turned));
    const std::vector<PackedWeight> a = packed_weights_of(made), b = packed_weights_of(turned);
    REQUIRE(a.size() == 3);
    REQUIRE(b.size() == a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(b[i].source == a[i].source);
      CHECK(b[i].transposed == a[i].transposed);
    }
  }

  TEST_CASE("turned states: checkpoints have none, and either plan goes on from those of the other") {
    const RandomValues values = values_for(), others = values_for(-0.1);
    const Plan plans[] = {planned(request_for(0)), planned(request_for(all_turned))};
    for (const Plan& before : plans)
      for (const Plan& after : plans) {
        std::unique_ptr<Session> first = started(before, values);
        losses_of_steps(*first, values, 2);
        const Kept kept(*first);
        for (const auto& [name, tensor] : kept.tensors) CHECK_FALSE(llvm::StringRef(name).endswith(".turned"));
        std::unique_ptr<Session> second = started(after, others);
        llvm::cantFail(second->restore(
            kept.saved(2),
            [](llvm::StringRef name, const TensorView&) -> Status {
              return model_error("no weight is asked for, least of all " + name);
            },
            0));
        check_transposes(*second);
        CHECK(losses_of_steps(*second, values, 2) == losses_of_steps(*first, values, 2));
        // Weights that are overwritten are turned anew.
        std::unique_ptr<Session> third = started(after, others);
        llvm::cantFail(third->overwrite(kept.saved(2)));
        check_transposes(*third);
      }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("turned states: plans in which they are no transposes are refused") {
    const Plan plan = planned(request_for(all_turned));
    CHECK(failure_of(plan) == "");
    const auto slot_of = [](Plan& of, llvm::StringRef name) -> SlotId {
      for (const PlanState& state : of.states)
        if (of.slots[static_cast<size_t>(state.slot)].name == name) return state.slot;
      return -1;
    };
    const auto turned = [](Plan& of) -> PlanState& {
      return *llvm::find_if(of.states, [](const PlanState& state) {
        return state.init.kind == StateInit::Kind::TransposeOf && state.init.source == "b.weight";
      });
    };
    Plan missing = plan;
    turned(missing).init.source = "gone";
    CHECK(failure_of(missing) == "plan: b.weight.turned is the transpose of gone, which is no state");
    Plan wrong = plan;
    turned(wrong).init.source = "c.weight";
    CHECK(failure_of(wrong) == "plan: b.weight.turned is f8e4m3[64,96] but the transpose of c.weight, f8e4m3[48,96]");
    Plan changed = plan;
    changed.functions.front().updates.push_back({slot_of(changed, "b.weight"), slot_of(changed, "b.weight")});
    CHECK(failure_of(changed) == "plan: b.weight.turned is the transpose of b.weight, and train_step changes b.weight");
  }
}

}  // namespace
}  // namespace plimsoll
