#include "passes/budget/guess_pipeline.h"

#include <doctest/doctest.h>

// Tests the guess on two stages of a few instructions.

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

namespace {

Instruction instruction(Phase phase, double us, std::vector<SlotId> operands, std::vector<SlotId> results) {
  Instruction result;
  result.op = "exp";
  result.phase = phase;
  result.predicted_us = us;
  result.operands = std::move(operands);
  result.results = std::move(results);
  return result;
}

SlotId add_slot(Plan& plan, int64_t bytes, int32_t first, int32_t last) {
  Slot slot;
  slot.bytes = bytes;
  slot.function = 0;
  slot.first = first;
  slot.last = last;
  plan.slots.push_back(std::move(slot));
  return static_cast<SlotId>(plan.slots.size() - 1);
}

Plan empty_plan() {
  Plan plan;
  plan.device.alignment_bytes = 1;
  plan.arenas.emplace_back();
  plan.functions.emplace_back();
  return plan;
}

// The first value waits for the last instruction. 1,500 bytes are alive at the third one, 1,000 where that value is
// made again for 7 us.
Plan pipeline() {
  Plan plan = empty_plan();
  const SlotId saved = add_slot(plan, 500, 0, 4), a = add_slot(plan, 500, 1, 2), b = add_slot(plan, 500, 2, 3),
               c = add_slot(plan, 10, 3, 4), d = add_slot(plan, 10, 4, 4);
  plan.functions.front().instructions = {
      instruction(Phase::Forward, 7, {}, {saved}), instruction(Phase::Forward, 1, {saved}, {a}),
      instruction(Phase::Forward, 1, {a}, {b}), instruction(Phase::Backward, 1, {b}, {c}),
      instruction(Phase::Backward, 1, {saved, c}, {d})};
  plan.functions.front().outputs = {{"d", d}};
  plan.arenas.front().bytes = 1500;
  plan.later_stages.push_back(empty_plan());
  plan.later_stages.front().functions.front().instructions = {instruction(Phase::Backward, 10, {}, {})};
  return plan;
}

}  // namespace

TEST_CASE("pipelines are guessed by remats of the slowest stage") {
  const Plan plan = pipeline();
  const int64_t reserves = plan.device.reserve_bytes();
  CHECK(guess_pipeline_us(plan, reserves + 1500).value_or(0) == doctest::Approx(11));
  CHECK(guess_pipeline_us(plan, reserves + 1200).value_or(0) == doctest::Approx(18));
  CHECK(!guess_pipeline_us(plan, reserves + 900));  // what the third instruction reads and writes
  CHECK(!guess_pipeline_us(plan.later_stages.front(), reserves + 1500));
}

TEST_SUITE_END();

}  // namespace plimsoll
