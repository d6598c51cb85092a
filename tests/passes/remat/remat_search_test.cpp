#include "passes/remat/remat_search.h"

#include "passes/remat/remat.h"
#include "passes/remat/remat_descent.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <optional>

// One way down to a limit and its repair: how far each gets, for how much work and how much added time.

namespace plimsoll {
namespace {

// Layers of three ops, forward and backward, in which each backward op reads what the forward op made.
RematProblem equal_layers(int32_t layers) {
  const int32_t half = 3 * layers;
  RematProblem problem;
  for (int32_t o = 0; o < 2 * half; ++o) {
    const int32_t in_layer = (o < half ? o : 2 * half - 1 - o) % 3;
    RematOp op;
    op.cost_us = 10 + 7 * in_layer;
    if (o > 0) op.reads.push_back(o - 1);
    if (o > half) op.reads.push_back(2 * half - 1 - o);
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(o < half ? 10 + 5 * in_layer : 1);
    problem.live_out.push_back(o == 2 * half - 1);
  }
  return problem;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("remat: repairs add less than a descent, and get to where a descent is stuck") {
  std::mt19937 random(12);
  int cheaper = 0, reached = 0;
  for (int round = 0; round < 12; ++round) {
    const RematProblem problem = tangled_problem(random, 60);
    remat::RematSchedule schedule(problem);
    int64_t limit = plain_peak(problem) * 80 / 100;
    for (; remat::lower_peak(schedule, limit, remat::Tried::All); limit = limit * 98 / 100) {
      remat::drop_unneeded(schedule, limit);
      const double descent_us = schedule.added_us();
      remat::repair(schedule, limit, 400'000);
      CHECK(schedule.memory().peak() <= limit);
      CHECK(schedule.added_us() <= descent_us + 1e-9);
      cheaper += schedule.added_us() < descent_us - 1e-9;
    }
    remat::repair(schedule, limit, 4'000'000);
    reached += schedule.memory().peak() <= limit;
  }
  CHECK(cheaper > 0);
  CHECK(reached > 0);
}

TEST_CASE("remat: a descent that tries the most promising changes takes less work, and little more time") {
  std::mt19937 random(9);
  RematProblem problem = random_problem(random, 1200);
  add_offloads(random, problem);
  auto descend = [&](remat::Tried tried) {
    remat::RematSchedule schedule(problem);
    CHECK(remat::lower_peak(schedule, plain_peak(problem) * 3 / 4, tried));
    return std::pair(schedule.memory().steps(), schedule.added_us());
  };
  auto [all_steps, all_us] = descend(remat::Tried::All);
  auto [few_steps, few_us] = descend(remat::Tried::Promising);
  CHECK(few_steps < 0.85 * static_cast<double>(all_steps));
  CHECK(few_us < 1.05 * all_us);
}

TEST_CASE("remat: what a descent has tried saves work under the next limits, for little more time") {
  std::mt19937 random(9);
  RematProblem problem = random_problem(random, 1200);
  add_offloads(random, problem);
  auto descend = [&](bool is_one) {
    remat::RematSchedule schedule(problem);
    std::optional<remat::Descent> descent;
    for (int64_t percent : {90, 88, 86, 84, 82, 80}) {
      if (!is_one || !descent) descent.emplace(schedule, remat::Tried::Promising);
      CHECK(descent->lower_to(plain_peak(problem) * percent / 100));
    }
    return std::pair(schedule.memory().steps(), schedule.added_us());
  };
  auto [several_steps, several_us] = descend(false);
  auto [one_steps, one_us] = descend(true);
  CHECK(one_steps < several_steps);
  CHECK(one_us < 1.05 * several_us);
}

TEST_CASE("remat: a descent that tries few candidates that are alike takes much less work where layers are equal") {
  const RematProblem problem = equal_layers(400);
  auto descend = [&](remat::Tried tried) {
    remat::RematSchedule schedule(problem);
    CHECK(remat::lower_peak(schedule, plain_peak(problem) / 2, tried));
    return std::pair(schedule.memory().steps(), schedule.added_us());
  };
  auto [promising_steps, promising_us] = descend(remat::Tried::Promising);
  auto [few_steps, few_us] = descend(remat::Tried::FewAlike);
  CHECK(few_steps < 0.5 * static_cast<double>(promising_steps));
  CHECK(few_us < 1.02 * promising_us);
}

// A chain of 100 ops makes a value that waits while an op holds 5,000 bytes. To make it again from the start lowers the
// peak from 6,010 bytes to 5,010. To make only some of the chain again has another of its values wait instead.
TEST_CASE("remat: a descent makes a long chain again where nothing shorter lowers the peak") {
  constexpr int32_t length = 100;
  RematProblem problem;
  const auto add = [&](llvm::SmallVector<int32_t, 4> reads, int64_t bytes) -> RematOp& {
    RematOp op;
    op.cost_us = 1;
    op.reads = std::move(reads);
    op.writes.push_back(static_cast<int32_t>(problem.value_bytes.size()));
    problem.value_bytes.push_back(bytes);
    problem.live_out.push_back(0);
    problem.ops.push_back(std::move(op));
    return problem.ops.back();
  };
  add({}, 1000);
  for (int32_t o = 1; o < length; ++o) add({o - 1}, 1000);
  add({}, 10).workspace_bytes = 5000;
  add({length - 1, length}, 10);
  problem.live_out.back() = 1;
  REQUIRE(plain_peak(problem) == 6010);
  remat::RematSchedule schedule(problem);
  CHECK_FALSE(remat::lower_peak(schedule, 5100, remat::Tried::All));
  CHECK(remat::lower_peak(schedule, 5100, remat::Tried::All, remat::Chains::Long));
  CHECK(schedule.memory().peak() == 5010);
  CHECK(schedule.extras().size() == length);
}

TEST_SUITE_END();

}  // namespace plimsoll
