#include "passes/budget/step_of_stages.h"

#include <doctest/doctest.h>

#include <limits>

// Two stages of a pipeline: 4 micro-batches of 100 us forward and 200 us backward on the second, and of half as much on
// the first, which sends each forward's result and receives each backward's.

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

namespace {

constexpr int micro_batches = 4;

Instruction compute(Phase phase, double us) {
  Instruction instruction;
  instruction.op = "exp";
  instruction.phase = phase;
  instruction.predicted_us = us;
  return instruction;
}

Instruction transfer(const char* op, int64_t peer) {
  Instruction instruction;
  instruction.op = op;
  instruction.attrs.set("axis", "stage");
  instruction.attrs.set("peer", peer);
  return instruction;
}

Plan plan_of(std::vector<Instruction> instructions) {
  Plan plan;
  plan.arenas.emplace_back();
  plan.functions.emplace_back();
  plan.functions.front().instructions = std::move(instructions);
  plan.predicted_step_us = 0;
  for (const Instruction& instruction : plan.functions.front().instructions)
    plan.predicted_step_us += instruction.predicted_us;
  return plan;
}

// All forwards, then all backwards, `more_us` longer in all.
Plan first_stage(double more_us = 0) {
  std::vector<Instruction> instructions;
  for (int i = 0; i < micro_batches; ++i) {
    instructions.push_back(compute(Phase::Forward, 50));
    instructions.push_back(transfer("send", 1));
  }
  for (int i = 0; i < micro_batches; ++i) {
    instructions.push_back(transfer("receive", 1));
    instructions.push_back(compute(Phase::Backward, 100 + more_us / micro_batches));
  }
  return plan_of(std::move(instructions));
}

// Forward and backward of one micro-batch after the other.
Plan second_stage(double more_us = 0) {
  std::vector<Instruction> instructions;
  for (int i = 0; i < micro_batches; ++i) {
    instructions.push_back(transfer("receive", 0));
    instructions.push_back(compute(Phase::Forward, 100));
    instructions.push_back(compute(Phase::Backward, 200 + more_us / micro_batches));
  }
  for (int i = 0; i < micro_batches; ++i) instructions.push_back(transfer("send", 0));
  return plan_of(std::move(instructions));
}

const size_t order[] = {1, 0};

}  // namespace

// The second stage waits 50 us for the first forward and computes for 1,200; then the first does its backwards, 400 us.
TEST_CASE("step of stages: what a plan of a stage comes to beside the others") {
  const Plan plain[] = {first_stage(), second_stage()};
  StepOfStages step({&plain[0], &plain[1]}, order, 2000);
  CHECK(step.us_with(0, first_stage()) == doctest::Approx(1650));
  CHECK(step.us_with(0, first_stage(40)) == doctest::Approx(1690));
  CHECK(step.us_with(1, second_stage(40)) == doctest::Approx(1690));
  CHECK(step.us_with_more(1, 40) == doctest::Approx(1690));
  CHECK(step.fast_enough_us() >= 1650);
  CHECK(step.fast_enough_us() < 1652);
  CHECK(step.is_better(0, first_stage(), first_stage(40)));
  // Of 2,000 us the second stage waits 450 in any case, at least nine tenths of that for sure.
  CHECK(step.enough_us_of(1) == doctest::Approx(2000 - 0.9 * 450));
  // The first one's backwards are all at the end, so that none of what is added to them is hidden.
  CHECK(step.hidden_us_of(0) < 603);
  CHECK(!step.is_too_slow());
}

TEST_CASE("step of stages: plans count in the order of the search") {
  const Plan plain[] = {first_stage(), second_stage()}, slow[] = {first_stage(300), second_stage(100)};
  StepOfStages step({&plain[0], &plain[1]}, order, 2000);
  step.add(1, slow[1]);
  CHECK(!step.is_too_slow());
  CHECK(step.us_with(0, plain[0]) == doctest::Approx(1750));
  step.add(0, slow[0]);  // 2,050 us, and less a hundredth still too many
  CHECK(step.is_too_slow());
}

// Stages that do not meet are as slow as the slowest.
TEST_CASE("step of stages: what the slowest stage hides") {
  const Plan plain[] = {plan_of({compute(Phase::Backward, 100)}), plan_of({compute(Phase::Backward, 200)})};
  const StepOfStages step({&plain[0], &plain[1]}, order, std::numeric_limits<double>::infinity());
  CHECK(step.hidden_us_of(0) > 195);
  CHECK(step.hidden_us_of(0) <= 200);
  CHECK(step.enough_us_of(0) == std::numeric_limits<double>::infinity());
}

TEST_SUITE_END();

}  // namespace plimsoll
