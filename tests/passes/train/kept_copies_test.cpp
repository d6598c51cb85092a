#include "ir/kept_copies.h"
#include "ir/support/strings.h"
#include "passes/add_lengths.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/kept_states.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

// 16-bit copies of parameters that updates write for the next step.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[32,48], %labels: i64[32]) state(%a.weight: f32[64,48] parameter trained, %b.weight: f32[48,64] parameter trained, %head: f32[16,48] parameter trained) {
  %h = linear(%x, %a.weight) {transpose_w=1} : f32[32,64]
  %g = gelu(%h) {approximate="none"} : f32[32,64]
  %k = linear(%g, %b.weight) {transpose_w=1} : f32[32,48]
  %r = gelu(%k) {approximate="none"} : f32[32,48]
  %y = linear(%r, %head) {transpose_w=1} : f32[32,16]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[32], f32[]
  return loss=%loss
}
)";

TrainingRequest request_for(llvm::StringRef precision = "bf16", int64_t budget_bytes = 0) {
  TrainingRequest request;
  request.budget_bytes = budget_bytes;
  request.precision = precision.str();
  return request;
}

Plan planned(const TrainingRequest& request) { return compiled_plan(model, request); }

// The plan whose steps make all copies.
Plan plan_with_casts(TrainingRequest request = request_for()) {
  request.is_short = true;
  return planned(request);
}

std::vector<const PlanState*> copies_of(const Plan& plan) {
  std::vector<const PlanState*> states;
  for (const PlanState& state : plan.states)
    if (is_kept_copy(state.role, state.init)) states.push_back(&state);
  return states;
}

int64_t casts_of_parameters(const Plan& plan) {
  int64_t found = 0;
  for (const PlanFunction& function : plan.functions)
    found += llvm::count_if(function.instructions, [&](const Instruction& each) {
      return each.op == "cast" && plan.slots[static_cast<size_t>(each.operands[0])].category == Category::Parameters;
    });
  return found;
}

RandomValues values_for(double weights = 0.15) {
  RandomValues values;
  values.add_for(parsed(model));
  for (auto& [name, tensor] : values.tensors)
    if (is_float(tensor.type().dtype) && name != "x")
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, weights * tensor.get(i));
  return values;
}

// Each is its parameter, rounded.
void check_copies(Session& session) {
  for (const PlanState* state : copies_of(session.plan())) {
    const std::string& name = session.plan().slots[static_cast<size_t>(state->slot)].name;
    CAPTURE(name);
    CHECK(is_rounded(copy_of(session, name), copy_of(session, state->init.source)));
  }
}

TEST_SUITE("e2e") {
  TEST_CASE("kept copies: steps read them in place of casts, to the same bits") {
    const RandomValues values = values_for();
    for (const char* precision : {"bf16", "fp16"})
      for (const OptimizerKind optimizer : {OptimizerKind::AdamW, OptimizerKind::Sgd})
        for (const int64_t accumulate : {1, 2}) {
          CAPTURE(precision);
          CAPTURE(accumulate);
          TrainingRequest request = request_for(precision);
          request.optimizer.kind = optimizer;
          request.accumulate = accumulate;
          const Plan made = plan_with_casts(request), kept = planned(request);
          CHECK(casts_of_parameters(made) == 3);
          CHECK(copies_of(made).empty());
          CHECK(casts_of_parameters(kept) == 0);
          CHECK(copies_of(kept).size() == 3);
          CHECK(kept.predicted_step_us < made.predicted_step_us);
          std::unique_ptr<Session> session = started(kept, values);
          check_copies(*session);
          const std::vector<double> losses = losses_of_steps(*session, values, 4);
          check_copies(*session);
          CHECK(losses == losses_of_steps(*started(made, values), values, 4));
          CHECK(losses[3] < losses[0]);
        }
  }

  TEST_CASE("kept copies: drawn weights are drawn as those of layers") {
    const Plan made = plan_with_casts(), kept = planned(request_for());
    std::unique_ptr<Session> one = started(made, values_for()), other = started(kept, values_for());
    REQUIRE_FALSE(bool(one->initialise_randomly(3)));
    REQUIRE_FALSE(bool(other->initialise_randomly(3)));
    check_copies(*other);
    const Tensor a = copy_of(*one, "a.weight"), b = copy_of(*other, "a.weight");
    for (int64_t i = 0; i < a.type().elements(); ++i) CHECK(a.get(i) == b.get(i));
  }

  TEST_CASE("kept copies: checkpoints have none, and either plan goes on from those of the other") {
    const RandomValues values = values_for(), others = values_for(-0.1);
    const Plan plans[] = {plan_with_casts(), planned(request_for())};
    for (const Plan& before : plans)
      for (const Plan& after : plans) {
        std::unique_ptr<Session> first = started(before, values);
        losses_of_steps(*first, values, 2);
        const Kept kept(*first);
        for (const auto& [name, tensor] : kept.tensors) CHECK_FALSE(ends_with(name, ".bf16"));
        std::unique_ptr<Session> second = started(after, others);
        llvm::cantFail(second->restore(
            kept.saved(2),
            [](llvm::StringRef name, const TensorView&) -> Status {
              return model_error("no weight is asked for, least of all " + name);
            },
            0));
        check_copies(*second);
        CHECK(losses_of_steps(*second, values, 2) == losses_of_steps(*first, values, 2));
        std::unique_ptr<Session> third = started(after, others);
        llvm::cantFail(third->overwrite(kept.saved(2)));
        check_copies(*third);
      }
  }

  TEST_CASE("kept copies: a step for shorter samples writes those that the plan has") {
    std::string shorter = model.str();
    for (size_t at = 0; (at = shorter.find("[32", at)) != std::string::npos;) shorter.replace(at, 3, "[16");
    const CpuCatalog catalog;
    const StageDevices devices(cpu_device(), catalog);
    const TrainingRequest request = request_for();
    for (const Plan& plan : {plan_with_casts(), planned(request)}) {
      Result<Plan> both =
          add_shorter_step(llvm::cantFail(clean_model(parsed(shorter), "")), 16, request, devices, plan);
      REQUIRE_MESSAGE(bool(both), llvm::toString(both.takeError()));
      const auto written = llvm::count_if(both->functions.back().updates, [&](const PlanUpdate& update) {
        return llvm::any_of(copies_of(*both), [&](const PlanState* copy) { return copy->slot == update.state; });
      });
      CHECK(static_cast<size_t>(written) == copies_of(plan).size());
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("kept copies: they stand where there is room for them, and more budget gives no slower plan") {
    const Plan made = plan_with_casts(), kept = planned(request_for());
    const int64_t least = made.promised_bytes(), most = kept.promised_bytes();
    REQUIRE(most > least);
    double us = made.predicted_step_us;
    for (int64_t budget = least; budget < most + 1024; budget += 512) {
      CAPTURE(budget);
      const Plan plan = planned(request_for("bf16", budget));
      CHECK(plan.promised_bytes() <= budget);
      CHECK(copies_of(plan).size() == (budget >= most ? 3 : 0));
      CHECK(plan.predicted_step_us <= us);
      us = plan.predicted_step_us;
    }
  }

  TEST_CASE("kept copies: steps in f32, and those with small moments, have none") {
    CHECK(copies_of(planned(request_for("fp32"))).empty());
    TrainingRequest small = request_for();
    small.moments = Moments::BF16;
    CHECK(copies_of(planned(small)).empty());
  }

  TEST_CASE("kept copies: plans that change one of the two alone are refused") {
    const Plan plan = planned(request_for());
    CHECK(failure_of(plan) == "");
    Plan changed = plan;
    std::vector<PlanUpdate>& updates = changed.functions.front().updates;
    const SlotId copy = copies_of(changed).front()->slot;
    llvm::erase_if(updates, [&](const PlanUpdate& update) { return update.state == copy; });
    CHECK(failure_of(changed) ==
          "plan: a.weight.bf16 is the 16-bit copy of a.weight, and train_step changes only the parameter");
  }
}

}  // namespace
}  // namespace plimsoll
