#include "passes/remat/remat.h"

#include "passes/offload/overlap.h"
#include "passes/remat/level_groups.h"
#include "passes/remat/remat_search.h"

#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <algorithm>
#include <cmath>
#include <map>

// The incremental measures against a plain sweep, and the searches against what enumeration finds.

using namespace plimsoll;
using remat::ProgramPoint;

TEST_SUITE_BEGIN("unit");

namespace {

int64_t peak_with(const RematProblem& problem, const Extras& remats) {
  return plain_peak(with_extras(problem, remats, {}));
}

struct Contents {
  explicit Contents(const remat::RematSchedule& schedule) {
    for (ProgramPoint at : schedule.extras()) {
      const RematOp& op = schedule.op(at.op);
      if (schedule.is_offload(at.op)) offloaded_behind[op.reads[0]] = at.position;
      if (schedule.is_reload(at.op)) reloads.insert({schedule.position_after(at), op.writes[0]});
      if (!schedule.is_copy(at.op)) remats.insert({at.position, at.op});
    }
  }

  Extras remats, reloads;
  std::map<int32_t, int32_t> offloaded_behind;  // by value: the base op behind which it is on the host
};

// The copy intervals of a schedule with its remats and copies as ops: offloads end where they are done, reloads where
// they are first read.
std::vector<CopyInterval> intervals_of(const RematProblem& base, const RematProblem& problem,
                                       const Contents& contents) {
  std::vector<int32_t> places;  // of the base ops, which alone write the base problem's values
  for (int32_t o = 0; o < problem.op_count(); ++o)
    if (problem.ops[o].writes[0] < static_cast<int32_t>(base.value_bytes.size())) places.push_back(o);
  std::vector<CopyInterval> intervals;
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RematOp& op = problem.ops[o];
    if (op.engine == Engine::Compute) continue;
    int32_t done = o + 1;
    if (op.engine == Engine::ToHost) {
      // The offloads of a base op stand right behind it.
      done = places[contents.offloaded_behind.at(op.reads[0])] + 1;
      while (problem.ops[done].engine == Engine::ToHost) ++done;
    } else {
      while (done < problem.op_count() && !llvm::is_contained(problem.ops[done].reads, op.writes[0])) ++done;
    }
    intervals.push_back({o, o, done});
  }
  return intervals;
}

int64_t peak_with(const RematProblem& problem, const Contents& contents) {
  const RematProblem final = with_extras(problem, contents.remats, contents.reloads);
  return plain_peak(final, intervals_of(problem, final, contents));
}

// The time that the engines take beyond the plain ops, and 2 % of the copy time.
double plain_added_us(const RematProblem& problem, const Contents& contents) {
  const RematProblem final = with_extras(problem, contents.remats, contents.reloads);
  double added = total_us(final, intervals_of(problem, final, contents));
  for (const RematOp& op : problem.ops) added -= op.cost_us;
  for (const RematOp& op : final.ops)
    if (op.engine != Engine::Compute) added += 0.02 * op.cost_us;
  return added;
}

Extras extras_of(llvm::ArrayRef<Remat> remats) {
  Extras result;
  for (const Remat& remat : remats) result.insert({remat.before, remat.op});
  return result;
}

Extras extras_of(llvm::ArrayRef<Reload> reloads) {
  Extras result;
  for (const Reload& reload : reloads) result.insert({reload.before, reload.value});
  return result;
}

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

TEST_CASE("remat: incremental measures equal a plain sweep") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_problem(random, 3 + pick(random, 20));
    remat::RematSchedule schedule(problem);
    Extras remats;
    for (int change = 0; change < 40; ++change) {
      ProgramPoint at{1 + pick(random, problem.op_count()), pick(random, problem.op_count())};
      if (!remats.empty() && pick(random, 2) == 0) {
        auto old = *std::next(remats.begin(), pick(random, static_cast<int>(remats.size())));
        schedule.erase({old.first, old.second});
        remats.erase(old);
      } else if (schedule.may_insert(at)) {
        schedule.insert(at);
        remats.insert({at.position, at.op});
      }
      const int64_t peak = peak_with(problem, remats);
      REQUIRE(schedule.memory().peak() == peak);
      const int64_t limit = peak * pick(random, 5) / 4;
      int64_t excess = 0;
      schedule.memory().each_above(limit, [&](ProgramPoint, int64_t live) {
        excess += live - limit;
        return true;
      });
      REQUIRE(schedule.memory().excess(limit) == excess);
    }
    schedule.rewind(0);
    CHECK(schedule.memory().peak() == plain_peak(problem));
    CHECK(schedule.added_us() == doctest::Approx(0));
  }
}

TEST_CASE("remat: incremental measures with copies equal a plain sweep") {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_problem(random, 3 + pick(random, 20));
    add_offloads(random, problem);
    if (problem.offloads.empty()) continue;
    problem.duplex_shares = {1 - round % 3 * 0.25, 1 - round % 4 * 0.2};
    problem.copy_interference = {round % 5 * 0.5, round % 3 * 0.1};
    remat::RematSchedule schedule(problem);
    for (int change = 0; change < 40; ++change) {
      int32_t position = 1 + pick(random, problem.op_count());
      ProgramPoint at = schedule.point_before(
          position, schedule.producer_at(pick(random, schedule.producer_count(position)), position));
      if (!schedule.extras().empty() && pick(random, 2) == 0)
        at = schedule.extras()[static_cast<size_t>(pick(random, static_cast<int>(schedule.extras().size())))];
      if (schedule.is_offload(at.op))
        schedule.make_synchronous(at.op);
      else if (schedule.has(at))
        schedule.erase(at);
      else if (schedule.may_insert(at))
        schedule.insert(at);
      REQUIRE(schedule.memory().peak() == peak_with(problem, Contents(schedule)));
      REQUIRE(schedule.added_us() == doctest::Approx(plain_added_us(problem, Contents(schedule))));
    }
    schedule.rewind(0);
    CHECK(schedule.memory().peak() == plain_peak(problem));
    CHECK(schedule.added_us() == doctest::Approx(0));
  }
}

// Value 0 is read by the two ops after the one that makes it.
TEST_CASE("remat: the final schedule has a plan's remats and copies in their places") {
  RematProblem problem;
  problem.value_bytes = {10, 20, 30};
  problem.live_out = {0, 0, 1};
  problem.ops.resize(3);
  for (int32_t o = 0; o < 3; ++o) problem.ops[o].writes = {o};
  problem.ops[1].reads = {0};
  problem.ops[2].reads = {0, 1};
  problem.ops[2].in_place = {{2, 0}};
  problem.ops[0].remat_until = 2;
  problem.offloads = {{0, 3, 4}};
  const auto reads = [](const RematProblem& final, int32_t op) { return final.ops[op].reads; };

  // Ops 0, 1, 0 again, 2. What op 0 makes again is value 3, which op 2 reads and is written over.
  const RematProblem again = with_extras(problem, {{2, 0}}, {});
  REQUIRE(again.op_count() == 4);
  CHECK(again.value_bytes == std::vector<int64_t>{10, 20, 30, 10});
  CHECK(again.ops[2].writes[0] == 3);
  CHECK(again.ops[2].remat_until == 3);
  CHECK(reads(again, 3) == decltype(again.ops[3].reads){3, 1});
  CHECK(again.ops[3].in_place[0].read == 3);
  CHECK(again.live_out == std::vector<char>{0, 0, 1, 0});

  // Ops 0, to the host, 1, to the device, 2. Value 3 lies on the host, value 4 is the reloaded one.
  const RematProblem copied = with_extras(problem, {}, {{2, 0}});
  REQUIRE(copied.op_count() == 5);
  CHECK(copied.value_bytes == std::vector<int64_t>{10, 20, 30, 0, 10});
  CHECK(copied.ops[1].engine == Engine::ToHost);
  CHECK(copied.ops[1].cost_us == 3);
  CHECK(reads(copied, 3) == decltype(copied.ops[3].reads){3});
  CHECK(copied.ops[3].cost_us == 4);
  CHECK(reads(copied, 4) == decltype(copied.ops[4].reads){4, 1});
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

// Ops read what was made up to 20 ops before, so that an op that runs again mostly needs others.
RematProblem tangled_problem(std::mt19937& random, int ops) {
  RematProblem problem;
  for (int o = 0; o < ops; ++o) {
    RematOp op;
    op.cost_us = 1 + pick(random, 20);
    std::set<int32_t> reads;
    for (int i = 0; i < 3 && o > 0; ++i) reads.insert(std::max(0, o - 1 - pick(random, 20)));
    op.reads.assign(reads.begin(), reads.end());
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(1 + pick(random, 100));
    problem.live_out.push_back(o == ops - 1);
  }
  return problem;
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

TEST_CASE("remat: the same problem gives the same plan") {
  std::mt19937 random(3);
  RematProblem problem = random_problem(random, 60);
  int64_t limit = plain_peak(problem) * 3 / 4;
  RematPlan one = plan_within(problem, limit, {.seconds = 0.2});
  CHECK(one.remats == plan_within(problem, limit, {.seconds = 0.2}).remats);
}

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
