#include "passes/remat/remat.h"

#include "passes/remat/level_groups.h"
#include "passes/remat/remat_schedule.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <cmath>

// No plan is below what the bounds say, and small problems are solved as well as enumeration solves them.

namespace plimsoll {
namespace {

using remat::ProgramPoint;

// The minimum added time of at most `max_extras` remats and reloads within the limit; infinite if none are.
double cheapest_of(int max_extras, const RematProblem& problem, int64_t limit) {
  remat::RematSchedule schedule(problem);
  std::vector<ProgramPoint> all;
  for (int32_t position = 1; position <= problem.op_count(); ++position)
    for (int32_t i = 0; i < schedule.producer_count(position); ++i)
      if (ProgramPoint at = schedule.point_before(position, schedule.producer_at(i, position)); schedule.may_insert(at))
        all.push_back(at);
  double best = std::numeric_limits<double>::infinity();
  auto extend = [&](auto&& self, size_t from, int left) -> void {
    if (schedule.added_us() >= best) return;
    if (schedule.memory().peak() <= limit) {
      best = schedule.added_us();
      return;
    }
    if (left == 0) return;
    for (size_t i = from; i < all.size(); ++i) {
      schedule.insert(all[i]);
      self(self, i + 1, left - 1);
      schedule.erase(all[i]);
    }
  };
  extend(extend, 0, max_extras);
  return best;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

// Where the fourth op works in 300 bytes, 1 byte of the first op and 50 of the second wait. The first makes more bytes
// for its time, but only the byte could be shed there, so that 50 bytes cost the time of the second alone.
TEST_CASE("remat: a bound counts the results that wait at an op alone") {
  RematProblem problem;
  problem.value_bytes = {100, 1, 50, 1, 1, 1};
  problem.live_out = {0, 0, 0, 0, 0, 1};
  problem.ops.resize(5);
  problem.ops[0].cost_us = 10;
  problem.ops[0].writes = {0, 1};
  problem.ops[1].cost_us = 20;
  problem.ops[1].writes = {2};
  problem.ops[2].reads = {0};
  problem.ops[2].writes = {3};
  problem.ops[3].reads = {3};
  problem.ops[3].writes = {4};
  problem.ops[3].workspace_bytes = 300;
  problem.ops[4].reads = {1, 2, 4};
  problem.ops[4].writes = {5};
  const int64_t limit = measure_remats(problem, {}).peak_bytes - 50;
  const RematPlan plan = measure_remats(problem, {{4, 1}});
  CHECK(plan.peak_bytes <= limit);
  CHECK(plan.added_us == 20);
  CHECK(min_added_us(problem, limit) == 20);
  CHECK(PeakBound(problem).min_added_us(limit) <= 20);
}

TEST_CASE("remat: as cheap as the best three remats, and never below the bound") {
  std::mt19937 random(2);
  int solved[2] = {0, 0}, missed[2] = {0, 0};
  for (int round = 0; round < 80; ++round) {
    bool with_offloads = round % 2 == 1;
    RematProblem problem = random_problem(random, 8);
    if (with_offloads) add_offloads(random, problem), problem.copy_interference.share = round % 3 * 0.1;
    int64_t peak = plain_peak(problem), limit = peak - 1 - pick(random, static_cast<int>(peak / 4) + 1);
    RematPlan plan = plan_within(problem, limit, {.seconds = 0.01});
    double best = cheapest_of(3, problem, limit);
    if (best < std::numeric_limits<double>::infinity()) {
      bool as_cheap = plan.peak_bytes <= limit && plan.added_us <= best + 1e-9;
      ++(as_cheap ? solved : missed)[with_offloads];
    }
    int64_t on_host = 0;
    for (const OffloadOption& option : problem.offloads)
      if (llvm::any_of(plan.reloads, [&](const Reload& reload) { return reload.value == option.value; }))
        on_host += problem.value_bytes[option.value];
    if (plan.peak_bytes <= limit) {
      CHECK(min_added_us(problem, limit) <= plan.added_us + 1e-9);
      CHECK(min_added_us_of_blocks(problem, limit) <= plan.added_us + 1e-9);
      CHECK(PeakBound(problem).min_added_us(limit, on_host) <= plan.added_us + 1e-9);
    }
    CHECK(PeakBound(problem).min_added_us(limit) <= min_added_us(problem, limit) + 1e-9);
    CHECK(min_peak_bytes(problem) <= plan.peak_bytes);
    if (const double quick_us = added_us_of_descent(problem, limit); std::isfinite(quick_us))
      CHECK(quick_us >= min_added_us(problem, limit) - 1e-9);
    CHECK(min_peak_bytes(problem) <= plan_within(problem, 1, {.seconds = 0.01}).peak_bytes);
    CHECK(plain_peak(with_extras(problem, extras_of(plan.remats), extras_of(plan.reloads))) <= plan.peak_bytes);
  }
  for (int kind : {0, 1}) {
    CHECK(solved[kind] > 8);
    CHECK(missed[kind] <= 1);  // the search is not complete
  }
}

// Six ops, each of which reads the one before, make a value that waits while an op takes 100 bytes. Within 101 bytes
// the value is dropped there, and all six run again, since nothing else of them is left.
TEST_CASE("remat: a bound of several ops counts what an op that runs again needs in turn") {
  RematProblem problem;
  for (int32_t o = 0; o < 8; ++o) {
    RematOp op;
    op.cost_us = 3 + o;
    if (o > 0 && o != 6) op.reads.push_back(o == 7 ? 5 : o - 1);
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(o < 6 ? 10 : 1);
    problem.live_out.push_back(o >= 6);
  }
  problem.ops[6].workspace_bytes = 100;
  REQUIRE(plain_peak(problem) == 111);
  const RematPlan plan = plan_within(problem, 101, {.seconds = 0.01});
  CHECK(plan.peak_bytes == 101);
  CHECK(plan.added_us == 3 + 4 + 5 + 6 + 7 + 8);
  CHECK(min_added_us(problem, 101) == 8);
  CHECK(min_added_us_of_blocks(problem, 101) == doctest::Approx(plan.added_us).epsilon(1e-3));
  CHECK(min_added_us_of_blocks(problem, 101) <= plan.added_us + 1e-9);
  CHECK(min_added_us_of_blocks(problem, 100) == std::numeric_limits<double>::infinity());
  CHECK(min_added_us_of_blocks(problem, 111) == 0);
}

TEST_CASE("remat: no plan of a graph without repeated blocks is below its bounds") {
  std::mt19937 random(11);
  for (int round = 0; round < 6; ++round) {
    const RematProblem problem = tangled_problem(random, 30 + 10 * (round % 3));
    const int64_t peak = plain_peak(problem);
    double bound_above_us = 0, added_above_us = 0;
    int higher = 0;
    for (int share : {90, 80, 70}) {
      const int64_t limit = peak * share / 100;
      const RematPlan plan = plan_within(problem, limit, {.seconds = 0.05});
      const double bound_us = min_added_us_of_blocks(problem, limit);
      higher += bound_us > min_added_us(problem, limit);
      CHECK(bound_us >= 0.9 * bound_above_us);
      bound_above_us = bound_us;
      if (plan.peak_bytes > limit) continue;
      CHECK(plan.added_us >= added_above_us - 1e-9);
      added_above_us = plan.added_us;
      CHECK(bound_us <= plan.added_us + 1e-9);
      CHECK(min_added_us(problem, limit) <= plan.added_us + 1e-9);
    }
    CHECK(higher > 0);
  }
}

// Value 0 waits for op 2, which cannot be without it; value 1 may be made again.
TEST_CASE("remat: the least peak is what no remat and no copy can take away") {
  RematProblem problem;
  problem.value_bytes = {10, 20, 30, 5};
  problem.live_out = {0, 0, 0, 1};
  problem.ops.resize(4);
  for (int32_t i = 0; i < 4; ++i) problem.ops[i].writes = {i};
  problem.ops[2].reads = {0};
  problem.ops[3].reads = {1, 2};
  CHECK(plain_peak(problem) == 60);
  CHECK(min_peak_bytes(problem) == 55);
  problem.ops[2].workspace_bytes = 100;
  CHECK(min_peak_bytes(problem) == 140);
  // Levels 2 % apart from 160 down: the sixth has 141 bytes, and none is tried below the least peak.
  const RematOptions options{.seconds = 0.01};
  CHECK(RematLevelGroups(problem, options).lowest_bytes(0) == 141);
  problem.ops[1].repeatable = false;
  CHECK(min_peak_bytes(problem) == 160);
  CHECK(min_added_us(problem, 159) == std::numeric_limits<double>::infinity());
  CHECK(RematLevelGroups(problem, options).count() == 0);
  CHECK(remat_levels(problem, 159, options).size() == 1);
  problem.offloads = {{1, 1, 1}};
  CHECK(min_peak_bytes(problem) == 140);
}

TEST_SUITE_END();

}  // namespace plimsoll
