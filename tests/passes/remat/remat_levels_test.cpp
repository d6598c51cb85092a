#include "passes/remat/level_groups.h"
#include "passes/remat/remat.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

// Plans for fixed levels of the peak: where levels end, and that a plan follows from its level alone.

namespace plimsoll {
namespace {

// 8 ops make 10 bytes each, 8 more read them, last first; each runs 10 us.
RematProblem there_and_back(double copy_us) {
  RematProblem problem;
  for (int32_t o = 0; o < 16; ++o) {
    RematOp op;
    op.cost_us = 10;
    if (o > 0) op.reads.push_back(o - 1);
    if (o >= 8 && 15 - o != o - 1) op.reads.push_back(15 - o);
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(o < 8 ? 10 : 1);
    problem.live_out.push_back(o == 15);
    if (o < 8) problem.offloads.push_back({o, copy_us, copy_us});
  }
  return problem;
}

// Forward makes values that backward reads in reverse order.
RematProblem long_there_and_back() {
  RematProblem problem;
  const int32_t ops = long_ops + 100;
  for (int32_t o = 0; o < ops; ++o) {
    RematOp op;
    op.cost_us = 1 + o % 7;
    if (o > 0) op.reads.push_back(o - 1);
    if (o >= ops / 2 && ops - 1 - o != o - 1) op.reads.push_back(ops - 1 - o);
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(o < ops / 2 ? 1000 + o % 11 : 10);
    problem.live_out.push_back(o == ops - 1);
  }
  return problem;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("remat: the same problem gives the same plan") {
  std::mt19937 random(3);
  RematProblem problem = random_problem(random, 60);
  int64_t limit = plain_peak(problem) * 3 / 4;
  RematPlan one = plan_within(problem, limit, {.seconds = 0.2});
  CHECK(one.remats == plan_within(problem, limit, {.seconds = 0.2}).remats);
}

TEST_CASE("remat: what hides behind compute is copied instead") {
  // 80 bytes wait at the middle; four of the first seven values must be elsewhere there for 40.
  RematPlan hidden = plan_within(there_and_back(10), 40, {.seconds = 0.05});
  CHECK(hidden.peak_bytes <= 40);
  CHECK(hidden.remats.empty());
  CHECK(hidden.added_us == doctest::Approx(0.02 * 2 * 10 * static_cast<double>(hidden.reloads.size())));
  // Copying one value takes longer than all compute.
  RematPlan recomputed = plan_within(there_and_back(1000), 40, {.seconds = 0.05});
  CHECK(recomputed.peak_bytes <= 40);
  CHECK(recomputed.reloads.empty());
}

TEST_CASE("remat: levels end at the minimum share asked for") {
  std::mt19937 random(6);
  RematProblem problem = random_problem(random, 60);
  const auto ends_at = [&](double min_share) {
    const std::vector<RematPlan> levels =
        remat_levels(problem, plain_peak(problem), {.seconds = 0.1, .min_share = min_share});
    return levels.size();
  };
  CHECK(ends_at(1) == 1);
  CHECK(ends_at(0.9) == 6);  // the plain plan, and five levels of 2 %
  CHECK(ends_at(0) > 6);
}

TEST_CASE("remat: the plans of a long problem do not depend on what is asked for") {
  const RematProblem problem = long_there_and_back();
  const int64_t peak = plain_peak(problem);
  const RematOptions options{.seconds = 0.05, .min_share = 0.05};
  const std::vector<RematPlan> all = remat_levels(problem, peak, options);
  CHECK(all.size() > 60);
  for (int64_t highest : {peak / 2, peak / 5, peak / 10}) {
    const std::vector<RematPlan> some = remat_levels(problem, highest, options);
    REQUIRE(some.size() < all.size());
    CHECK(some.front().peak_bytes > highest * 85 / 100);
    for (size_t i = 0; i < some.size(); ++i) {
      const RematPlan& same = all[all.size() - some.size() + i];
      CHECK(some[i].level_bytes == same.level_bytes);
      CHECK(some[i].remats == same.remats);
    }
  }
}

TEST_CASE("remat: a group of levels is the same whichever others are searched, and costs what its bound says") {
  RematProblem problem = long_there_and_back();
  for (int32_t v = 0; v < long_ops / 2; v += 3) problem.offloads.push_back({v, 9, 9});
  const RematOptions options{.seconds = 0.05, .min_share = 0.05};
  const int64_t peak = plain_peak(problem);
  RematLevelGroups in_order(problem, options);
  REQUIRE(in_order.count() > 6);
  int64_t above = peak;
  for (size_t group = 0; group < in_order.count(); ++group) {
    REQUIRE(in_order.reaches(group));
    CHECK(in_order.highest_bytes(group) < above);
    above = in_order.lowest_bytes(group);
    const std::vector<RematPlan> plans = in_order.search(group, peak, false);
    REQUIRE(!plans.empty());
    CHECK(plans.front().level_bytes == in_order.highest_bytes(group));
    CHECK(plans.back().level_bytes == in_order.lowest_bytes(group));
    const double bound_us = PeakBound(problem).min_added_us(in_order.highest_bytes(group));
    for (size_t i = 0; i < plans.size(); ++i) {
      CHECK(plans[i].peak_bytes <= plans[i].level_bytes);
      CHECK(plans[i].added_us >= bound_us - 1e-9);
      if (i > 0) CHECK(plans[i - 1].added_us <= plans[i].added_us + 1e-9);
    }
    if (group % 3 != 2) continue;
    const std::vector<RematPlan> alone = RematLevelGroups(problem, options).search(group, peak, false);
    REQUIRE(alone.size() == plans.size());
    for (size_t i = 0; i < plans.size(); ++i) {
      CHECK(alone[i].remats == plans[i].remats);
      CHECK(alone[i].reloads == plans[i].reloads);
    }
  }
  CHECK(in_order.lowest_bytes(in_order.count() - 1) >= min_peak_bytes(problem));
}

// Costs are no sums of powers of two, so that a schedule's time depends on the order of what was put in.
TEST_CASE("remat: a stride is the same whether others are asked for with it or before") {
  for (int seed : {6, 7, 8}) {
    std::mt19937 random(seed);
    RematProblem problem = long_there_and_back();
    for (RematOp& op : problem.ops) op.cost_us = 0.1 * (1 + pick(random, 9));
    for (int32_t v = 0; v < long_ops / 2; ++v) {
      const int thousands = 1 + pick(random, 3);
      problem.value_bytes[v] = 1000 * thousands;
      if (pick(random, 2) != 0) problem.offloads.push_back({v, 0.7 * thousands, 0.7 * thousands});
    }
    const RematOptions options{.seconds = 0.01, .min_share = 0.05};
    RematLevelGroups one_by_one(problem, options), at_once(problem, options);
    size_t last = 0;
    while (one_by_one.reaches(last + 1)) ++last;
    REQUIRE(at_once.reaches(last));
    const int64_t peak = plain_peak(problem);
    const std::vector<RematPlan> plans = one_by_one.search(last, peak, false), same = at_once.search(last, peak, false);
    REQUIRE(plans.size() == same.size());
    for (size_t i = 0; i < plans.size(); ++i) {
      CHECK(plans[i].remats == same[i].remats);
      CHECK(plans[i].reloads == same[i].reloads);
    }
  }
}

TEST_CASE("remat: with offloads, no plan takes longer than one for a lower level") {
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    RematProblem problem = random_problem(random, 40);
    RematProblem remats_only = problem;
    add_offloads(random, problem);
    std::vector<RematPlan> starts = remat_levels(remats_only, plain_peak(problem), {.seconds = 0.025});
    std::vector<RematPlan> levels = remat_levels(problem, plain_peak(problem), {.seconds = 0.1}, starts);
    REQUIRE(levels.size() > 1);
    for (size_t i = 1; i < levels.size(); ++i) CHECK(levels[i - 1].added_us <= levels[i].added_us + 1e-9);
    for (const RematPlan& plan : levels)
      CHECK(plain_peak(with_extras(problem, extras_of(plan.remats), extras_of(plan.reloads))) <= plan.peak_bytes);
    // What remats alone reach is reached, and for no more.
    for (const RematPlan& plan : starts) {
      auto as_low = llvm::find_if(levels, [&](const RematPlan& other) { return other.peak_bytes <= plan.peak_bytes; });
      REQUIRE(as_low != levels.end());
      CHECK(as_low->added_us <= plan.added_us + 1e-9);
    }
  }
}

TEST_SUITE_END();

}  // namespace plimsoll
