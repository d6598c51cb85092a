#include "ir/support/strings.h"
#include "passes/add_lengths.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/packed_weights.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/kept_states.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

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

TrainingRequest request_for(int64_t budget_bytes) {
  TrainingRequest request;
  request.adapters.rank = 4;
  request.quantize.format = WeightFormat::FP8;
  request.budget_bytes = budget_bytes;
  request.precision = "fp8";
  return request;
}

Plan planned(const TrainingRequest& request) { return compiled_plan(model, request); }

// The plan whose steps make all transposes, and the one whose steps make none.
Plan plan_with_transposes() {
  TrainingRequest request = request_for(0);
  request.is_short = true;
  return planned(request);
}
Plan plan_with_states() { return planned(request_for(0)); }

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

const Decision* find_decision(const Plan& plan) {
  const auto found = llvm::find_if(plan.decisions, [](const Decision& each) {
    return each.pass == "expand-f8" && each.subject == "transposes of codes";
  });
  return found == plan.decisions.end() ? nullptr : &*found;
}
bool has_decision(const Plan& plan) { return find_decision(plan) != nullptr; }
Decision decision_of(const Plan& plan) {
  REQUIRE(has_decision(plan));
  return *find_decision(plan);
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

TEST_SUITE("e2e") {
  TEST_CASE("turned states: steps read them in place of transposes, to the same bits") {
    const RandomValues values = values_for();
    const Plan made = plan_with_transposes(), turned = plan_with_states();
    CHECK(made_transposes(made) == 2);
    CHECK(transposes_of(made).empty());
    CHECK(made_transposes(turned) == 0);
    CHECK(transposes_of(turned).size() == 2);
    std::unique_ptr<Session> session = started(turned, values);
    check_transposes(*session);
    const std::vector<double> losses = losses_of_steps(*session, values, 4);
    CHECK(losses == losses_of_steps(*started(made, values), values, 4));
    CHECK(losses[3] < losses[0]);
    const Plan some = planned(request_for(made.promised_bytes() + 5120));
    CHECK(transposes_of(some).size() == 1);
    CHECK(losses == losses_of_steps(*started(some, values), values, 4));
  }

  TEST_CASE("turned states: parts of weights are asked for as without them") {
    const Plan made = plan_with_transposes(), turned = plan_with_states();
    const std::vector<PackedWeight> a = packed_weights_of(made), b = packed_weights_of(turned);
    REQUIRE(a.size() == 3);
    REQUIRE(b.size() == a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(b[i].source == a[i].source);
      CHECK(b[i].transposed == a[i].transposed);
    }
  }

  TEST_CASE("turned states: drawn weights are drawn as those of layers, and turned") {
    for (const Plan& plan : {plan_with_transposes(), plan_with_states()}) {
      std::unique_ptr<Session> session = started(plan, values_for());
      REQUIRE_FALSE(bool(session->initialise_randomly(3)));
      check_transposes(*session);
      const Tensor codes = copy_of(*session, "b.weight"), scale = copy_of(*session, "b.weight.absmax");
      double largest = 0;
      for (int64_t i = 0; i < codes.type().elements(); ++i) largest = std::max(largest, std::abs(codes.get(i)));
      // Uniform within 1 / sqrt(inputs).
      CHECK(largest * scale.get(0) == doctest::Approx(1 / std::sqrt(64.0)).epsilon(0.01));
    }
  }

  TEST_CASE("turned states: steps for shorter samples read those that the plan has") {
    std::string shorter = model.str();
    for (size_t at = 0; (at = shorter.find("[32", at)) != std::string::npos;) shorter.replace(at, 3, "[16");
    const int64_t least = plan_with_transposes().promised_bytes();
    const CpuCatalog catalog;
    const StageDevices devices(cpu_device(), catalog);
    for (const auto& [budget, states] : {std::pair<int64_t, int64_t>(0, 2), {least + 5120, 1}, {least, 0}}) {
      CAPTURE(budget);
      const TrainingRequest request = request_for(budget);
      const Plan plan = planned(request);
      CHECK(transposes_of(plan).size() == static_cast<size_t>(states));
      Result<Plan> both =
          add_shorter_step(llvm::cantFail(clean_model(parsed(shorter), "")), 16, request, devices, plan);
      REQUIRE_MESSAGE(bool(both), llvm::toString(both.takeError()));
      CHECK(made_transposes(*both) == 2 * (2 - states));
    }
  }

  TEST_CASE("turned states: checkpoints have none, and either plan goes on from those of the other") {
    const RandomValues values = values_for(), others = values_for(-0.1);
    const Plan plans[] = {plan_with_transposes(), plan_with_states()};
    for (const Plan& before : plans)
      for (const Plan& after : plans) {
        std::unique_ptr<Session> first = started(before, values);
        losses_of_steps(*first, values, 2);
        const Kept kept(*first);
        for (const auto& [name, tensor] : kept.tensors) CHECK_FALSE(ends_with(name, ".turned"));
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
  TEST_CASE("turned states: there are as many as the budget has room for, and more of it gives no slower plan") {
    const Plan made = plan_with_transposes(), turned = plan_with_states();
    REQUIRE(made_transposes(made) == 2);
    CHECK(decision_of(turned).choice == "10.5 KiB as states");  // 64 x 96 and 48 x 96 codes
    const int64_t least = made.promised_bytes(), most = turned.promised_bytes();
    double us = made.predicted_step_us;
    std::set<size_t> seen;
    for (int64_t budget = least; budget < most + 1024; budget += 512) {
      CAPTURE(budget);
      const Plan plan = planned(request_for(budget));
      const size_t states = transposes_of(plan).size();
      seen.insert(states);
      CHECK(plan.promised_bytes() <= budget);
      CHECK(states + static_cast<size_t>(made_transposes(plan)) == 2);
      CHECK(plan.predicted_step_us <= us);
      us = plan.predicted_step_us;
      CHECK(decision_of(plan).choice == (states == 0   ? "made in each step"
                                         : states == 1 ? "4.5 KiB as states"
                                                       : "10.5 KiB as states"));
    }
    CHECK(seen == std::set<size_t>{0, 1, 2});
    // Where the step needs remats, it makes them.
    const Plan tight = planned(request_for(least - 1024));
    CHECK(transposes_of(tight).empty());
    CHECK(decision_of(tight).choice == "made in each step");
    CHECK(llvm::StringRef(decision_of(tight).reason).contains("has no room for them"));
  }

  TEST_CASE("turned states: plans without frozen codes, or of several ranks, have no such choice") {
    TrainingRequest trained;
    trained.precision = "fp8";
    CHECK_FALSE(has_decision(planned(trained)));
    TrainingRequest per_row = request_for(0);
    per_row.precision = "bf16";
    CHECK_FALSE(has_decision(planned(per_row)));
    TrainingRequest ranks = request_for(0);
    ranks.mesh[MeshAxis::Data] = 2;
    CHECK_FALSE(has_decision(planned(ranks)));
    CHECK(transposes_of(planned(ranks)).empty());
  }

  TEST_CASE("turned states: plans in which they are no transposes are refused") {
    const Plan plan = plan_with_states();
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
