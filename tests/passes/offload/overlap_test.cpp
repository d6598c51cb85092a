#include "passes/offload/overlap.h"

#include "passes/remat/remat_schedule.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

// The three engines by hand, and the intervals of random schedules against their definition.

using namespace plimsoll;

TEST_SUITE_BEGIN("unit");

namespace {

RematOp op(Engine engine, double cost_us, llvm::SmallVector<int32_t, 4> reads, llvm::SmallVector<int32_t, 2> writes) {
  RematOp result;
  result.engine = engine;
  result.cost_us = cost_us;
  result.reads = std::move(reads);
  result.writes = std::move(writes);
  return result;
}

// A value is made, copied to the host (30 us), reloaded (20 us) and read; 10, 40, 5 us of compute around it.
RematProblem round_trip() {
  RematProblem problem;
  problem.value_bytes = {100, 0, 100, 100, 8};  // made, on the host, reloaded, other work, the end
  problem.live_out = {0, 0, 0, 0, 1};
  problem.ops = {op(Engine::Compute, 10, {}, {0}), op(Engine::ToHost, 30, {0}, {1}), op(Engine::Compute, 40, {}, {3}),
                 op(Engine::ToDevice, 20, {1}, {2}), op(Engine::Compute, 5, {2}, {4})};
  return problem;
}

DuplexShares random_shares(std::mt19937& random) { return {1 - pick(random, 9) / 12.0, 1 - pick(random, 9) / 12.0}; }

// Some ops that compute become collectives, each of a kind of its own.
void add_collectives(std::mt19937& random, RematProblem& problem) {
  problem.collective_shares = {1 - pick(random, 9) / 12.0, 1 - pick(random, 9) / 12.0, 0};
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    RematOp& op = problem.ops[static_cast<size_t>(o)];
    op.kind = o;
    if (op.engine != Engine::Compute || pick(random, 3) != 0) continue;
    op.link_us = op.cost_us + 1;
    op.cost_us = problem.collective_shares.min_cost_us(op.link_us);
    if (!op.in_place.empty() || pick(random, 2) == 0) op.not_before = o;
  }
}

// A schedule with remats and copies in place, in every second of them some ops talk to other ranks.
RematProblem random_schedule(std::mt19937& random, int ops) {
  RematProblem problem = random_problem(random, ops);
  add_offloads(random, problem);
  remat::RematSchedule schedule(problem);
  Extras remats, reloads;
  for (int change = 0; change < ops; ++change) {
    int32_t position = 1 + pick(random, problem.op_count());
    remat::ProgramPoint at = schedule.point_before(
        position, schedule.producer_at(pick(random, schedule.producer_count(position)), position));
    if (!schedule.may_insert(at)) continue;
    schedule.insert_with_ancestors(at, 3);
  }
  for (remat::ProgramPoint at : schedule.extras()) {
    if (schedule.is_reload(at.op())) reloads.insert({schedule.position_after(at), schedule.op(at.op()).writes[0]});
    if (!schedule.is_copy(at.op())) remats.insert({at.position(), at.op()});
  }
  RematProblem result = with_extras(problem, remats, reloads);
  for (RematOp& o : result.ops) o.remat_until = result.op_count();
  result.duplex_shares = random_shares(random);
  result.copy_interference = {static_cast<double>(ops % 2), ops % 3 * 0.1};
  if (ops % 2 == 1) add_collectives(random, result);
  return result;
}

// The time by what each engine has left to do, from one change of their speeds to the next.
double plain_total(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals) {
  std::vector<double> left;  // by interval; what waits in its engine has all of it
  std::vector<size_t> lines[3];
  auto op_of = [&](size_t w) -> const RematOp& { return problem.ops[static_cast<size_t>(intervals[w].op)]; };
  auto line_of = [&](size_t w) { return op_of(w).is_collective() ? 2 : op_of(w).engine == Engine::ToDevice ? 1 : 0; };
  for (size_t w = 0; w < intervals.size(); ++w)
    left.push_back(op_of(w).is_collective() ? op_of(w).link_us : op_of(w).cost_us);
  double now = 0;
  enum class Until { Computed, Through, Passed };
  // Until compute has done `us`, or the copy `copy` is through, or `us` have passed in which nothing is computed.
  auto pass = [&](Until until, double us, size_t copy = 0) {
    for (;;) {
      for (auto& line : lines)
        while (!line.empty() && left[line.front()] < 1e-9) line.erase(line.begin());
      if (until == Until::Through ? left[copy] < 1e-9 : us < 1e-9) return;
      const bool both = !lines[0].empty() && !lines[1].empty(), beside = until == Until::Computed && !lines[2].empty();
      const double rates[] = {both ? problem.duplex_shares.to_host : 1, both ? problem.duplex_shares.to_device : 1,
                              beside ? problem.collective_shares.link : 1};
      const double speed = beside ? problem.collective_shares.compute : 1;
      double step = until == Until::Through ? std::numeric_limits<double>::infinity() : us / speed;
      for (int way = 0; way < 3; ++way)
        if (!lines[way].empty()) step = std::min(step, left[lines[way].front()] / rates[way]);
      for (int way = 0; way < 3; ++way)
        if (!lines[way].empty()) left[lines[way].front()] -= step * rates[way];
      now += step;
      us -= step * speed;
    }
  };
  for (int32_t o = 0; o <= problem.op_count(); ++o) {
    for (size_t w = 0; w < intervals.size(); ++w)
      if (intervals[w].done == o) pass(Until::Through, 0, w);
    for (size_t w = 0; w < intervals.size(); ++w)
      if (intervals[w].issue == o) {
        lines[line_of(w)].push_back(w);
        if (!op_of(w).is_collective()) pass(Until::Passed, problem.copy_interference.us(op_of(w).cost_us));
      }
    if (o < problem.op_count() && problem.ops[static_cast<size_t>(o)].computes())
      pass(Until::Computed, problem.ops[static_cast<size_t>(o)].cost_us);
  }
  return now;
}

// The shortest time of any intervals within the limit, by trying all.
double shortest(const RematProblem& problem, int64_t limit, std::vector<CopyInterval> intervals, size_t next = 0) {
  auto is_late = [&](const CopyInterval& reload) {  // issued before compute has waited for what it reads
    return llvm::any_of(intervals, [&](const CopyInterval& offload) {
      const RematOp& copy = problem.ops[static_cast<size_t>(offload.op)];
      return llvm::is_contained(copy.writes, problem.ops[static_cast<size_t>(reload.op)].reads[0]) &&
             offload.done > reload.issue;
    });
  };
  if (next == intervals.size() && llvm::any_of(intervals, is_late)) return std::numeric_limits<double>::infinity();
  if (next == intervals.size())
    return plain_peak(problem, intervals) <= limit ? total_us(problem, intervals)
                                                   : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  CopyInterval& interval = intervals[next];
  const RematOp& copy = problem.ops[static_cast<size_t>(interval.op)];
  if (copy.engine == Engine::ToHost) {
    for (; interval.done <= problem.op_count(); ++interval.done)
      best = std::min(best, shortest(problem, limit, intervals, next + 1));
    return best;
  }
  int32_t earliest = copy.not_before;
  for (int32_t o = 0; o < interval.op; ++o)
    if (llvm::is_contained(problem.ops[static_cast<size_t>(o)].writes, copy.reads[0]))
      earliest = std::max(earliest, o + 1);
  for (; interval.issue >= earliest; --interval.issue)
    best = std::min(best, shortest(problem, limit, intervals, next + 1));
  return best;
}

}  // namespace

TEST_CASE("overlap: three engines by hand") {
  RematProblem problem = round_trip();
  // Nothing overlaps: 10 + 30 + 40 + 20 + 5.
  CHECK(total_us(problem, {{1, 1, 2}, {3, 3, 4}}) == 105);
  // The offload hides behind 40 us of compute: 10 + 40 + 20 + 5.
  CHECK(total_us(problem, {{1, 1, 3}, {3, 3, 4}}) == 75);
  // Compute waits for the offload, and the reload hides: 10 + 30 + 40 + 5.
  CHECK(total_us(problem, {{1, 1, 2}, {3, 2, 4}}) == 85);
  // Not waited for by compute, and still running after it: 10 + 40 and 20 from there.
  CHECK(total_us(problem, {{1, 1, 3}, {3, 3, 5}}) == 70);
}

TEST_CASE("overlap: a copy each way by hand") {
  RematProblem problem;
  problem.value_bytes = {100, 0, 100, 8};  // made, on the host, reloaded, the end
  problem.live_out = {0, 0, 0, 1};
  problem.ops = {op(Engine::Compute, 10, {}, {0}), op(Engine::ToHost, 30, {0}, {1}), op(Engine::Compute, 10, {}, {}),
                 op(Engine::ToDevice, 20, {}, {2}), op(Engine::Compute, 5, {2}, {3})};
  const std::vector<CopyInterval> intervals{{1, 1, 5}, {3, 3, 4}};
  // To the host from 10 to 40, to the device from 20 to 40, and 5.
  CHECK(total_us(problem, intervals) == 45);
  // From 20 on each at half its speed. 20 are left of each, done at 60.
  problem.duplex_shares = {0.5, 0.5};
  CHECK(total_us(problem, intervals) == doctest::Approx(65));
  // The one to the device is through at 20 + 20 / 0.8 = 45; of the other, 20 - 25 * 0.2 = 15 are left, until 60.
  problem.duplex_shares = {0.2, 0.8};
  CHECK(total_us(problem, intervals) == doctest::Approx(60));
}

TEST_CASE("overlap: engines equal a plain account of what each has left") {
  std::mt19937 random(5);
  int contended = 0;
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_schedule(random, 5 + pick(random, 40));
    for (const Overlap& overlap : overlap_levels(problem, std::numeric_limits<int64_t>::max())) {
      CHECK(overlap.total_us == doctest::Approx(plain_total(problem, overlap.intervals)).epsilon(1e-9));
      RematProblem alone = problem;
      alone.duplex_shares = {};
      contended += total_us(alone, overlap.intervals) < overlap.total_us * (1 - 1e-9);
    }
  }
  CHECK(contended > 50);
}

TEST_CASE("overlap: a gather is issued as early as hides it, within the limit") {
  RematProblem problem;
  problem.collective_shares = {0.5, 0.8, 0};
  problem.value_bytes = {10, 100, 10};  // other work, the gathered whole, the end
  problem.live_out = {0, 0, 1};
  RematOp gather = op(Engine::Compute, 0, {}, {1});
  gather.link_us = 10;
  gather.cost_us = problem.collective_shares.min_cost_us(gather.link_us);
  problem.ops = {op(Engine::Compute, 40, {}, {}), op(Engine::Compute, 8, {}, {0}), op(Engine::Compute, 16, {0}, {}),
                 gather, op(Engine::Compute, 5, {1}, {2})};
  // Waited for at once it takes 10 us. Beside 16 us of computing, which take 20, it costs 4, and so it does from one op
  // earlier on, which leaves time to ranks that are behind.
  CHECK(total_us(problem, {{3, 3, 4}}) == doctest::Approx(40 + 8 + 16 + 10 + 5));
  CHECK(total_us(problem, {{3, 2, 4}}) == doctest::Approx(40 + 8 + 20 + 5));
  const Overlap hidden = overlap_within(problem, 110);
  CHECK(hidden.intervals[0].issue == 1);
  CHECK(hidden.total_us == doctest::Approx(40 + 8 + 20 + 5));
  CHECK(hidden.peak_bytes == 110);
}

TEST_CASE("overlap: a sum is waited for as late as hides it, and holds what it reads so long") {
  RematProblem problem;
  problem.collective_shares = {0.5, 0.8, 0};
  problem.value_bytes = {100, 50, 20, 10};  // a gradient, the rank's piece of its sum, other work, the end
  problem.live_out = {0, 0, 0, 1};
  RematOp sum = op(Engine::Compute, 0, {0}, {1});
  sum.link_us = 10;
  sum.cost_us = problem.collective_shares.min_cost_us(sum.link_us);
  problem.ops = {op(Engine::Compute, 40, {}, {0}), sum, op(Engine::Compute, 16, {}, {2}),
                 op(Engine::Compute, 8, {2}, {}), op(Engine::Compute, 5, {1}, {3})};
  const Overlap held = overlap_within(problem, 170);
  CHECK(held.intervals[0].done == 3);
  CHECK(held.total_us == doctest::Approx(40 + 20 + 8 + 5));
  CHECK(held.peak_bytes == 170);
  CHECK(overlap_within(problem, 160).intervals[0].done == 2);
}

TEST_CASE("overlap: copies of one direction take turns") {
  RematProblem problem;
  problem.value_bytes = {1, 1, 1};
  problem.live_out = {0, 0, 1};
  problem.ops = {op(Engine::ToDevice, 30, {}, {0}), op(Engine::ToDevice, 30, {}, {1}), op(Engine::Compute, 10, {1}, {}),
                 op(Engine::Compute, 10, {0}, {2})};
  CHECK(total_us(problem, {{0, 0, 3}, {1, 1, 2}}) == 80);
  Overlap tight = overlap_within(problem, 0);
  CHECK(tight.intervals[0].done == 3);
  CHECK(tight.intervals[1].done == 2);
  CHECK(tight.total_us == 80);
  CHECK(tight.stalled_us == 60);
}

TEST_CASE("overlap: intervals stay within the limit and more room never takes longer") {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    RematProblem problem = random_schedule(random, 5 + pick(random, 40));
    int64_t tight = plain_peak(problem);
    double last = std::numeric_limits<double>::infinity();
    for (int64_t limit : {tight - 1, tight, tight + 2, tight + 5, tight + 10, tight + 1000}) {
      Overlap overlap = overlap_within(problem, limit);
      CHECK(overlap.peak_bytes <= std::max(limit, tight));
      CHECK(overlap.peak_bytes == plain_peak(problem, overlap.intervals));
      CHECK(overlap.total_us == total_us(problem, overlap.intervals));
      CHECK(overlap.total_us <= last);
      last = overlap.total_us;
    }
  }
}

TEST_CASE("overlap: a lower limit gives the first of the levels of a higher one") {
  std::mt19937 random(3);
  size_t max_levels = 0;
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_schedule(random, 5 + pick(random, 40));
    const std::vector<Overlap> all = overlap_levels(problem, std::numeric_limits<int64_t>::max());
    max_levels = std::max(max_levels, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i].peak_bytes <= all[i].limit_bytes);
      if (i > 0) CHECK(all[i].limit_bytes > all[i - 1].limit_bytes);
      if (i > 0) CHECK(all[i].total_us < all[i - 1].total_us);
      const std::vector<Overlap> some = overlap_levels(problem, all[i].limit_bytes);
      REQUIRE(some.size() == i + 1);
      CHECK(some.back().total_us == all[i].total_us);
    }
  }
  CHECK(max_levels > 2);
}

// A search asks for no more where it knows a faster plan.
TEST_CASE("overlap: intervals that are likely to take too long have one level, and others all of theirs") {
  std::mt19937 random(3);
  int shorter = 0;
  for (int round = 0; round < 200; ++round) {
    const RematProblem problem = random_schedule(random, 5 + pick(random, 40));
    const int64_t any = std::numeric_limits<int64_t>::max();
    const std::vector<Overlap> all = overlap_levels(problem, any);
    const std::vector<Overlap> slower = overlap_levels(problem, any, 1.01 * all.back().total_us);
    REQUIRE(slower.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) CHECK(slower[i].intervals == all[i].intervals);
    const std::vector<Overlap> faster = overlap_levels(problem, any, 0.99 * all.back().total_us);
    REQUIRE(faster.size() == 1);
    CHECK(faster.front().intervals == all.front().intervals);
    shorter += all.size() > 1;
  }
  CHECK(shorter > 50);
}

TEST_CASE("overlap: where a limit has no room for what is needed later, its bound is higher") {
  RematProblem problem;
  problem.value_bytes = {100, 100, 100};
  problem.live_out = {0, 0, 0};
  for (int32_t v = 0; v < 3; ++v) {
    problem.ops.push_back(op(Engine::ToDevice, 20, {}, {v}));
    problem.ops.push_back(op(Engine::Compute, 10, {v}, {}));
  }
  CHECK(min_total_us_within(problem, 100) == doctest::Approx(3 * (20 + 10)));
  CHECK(overlap_within(problem, 100).total_us == doctest::Approx(3 * (20 + 10)));
  CHECK(min_total_us(problem) == doctest::Approx(3 * 20 + 10));
  CHECK(min_total_us_within(problem, 200) == doctest::Approx(3 * 20 + 10));
  CHECK(overlap_within(problem, 200).total_us == doctest::Approx(3 * 20 + 10));
}

TEST_CASE("overlap: nothing within a limit is below its bound") {
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    const RematProblem problem = random_schedule(random, 5 + pick(random, 60));
    for (const Overlap& overlap : overlap_levels(problem, std::numeric_limits<int64_t>::max())) {
      CHECK(overlap.total_us >= min_total_us_within(problem, overlap.limit_bytes) * (1 - 1e-9));
    }
  }
}

TEST_CASE("overlap: nothing is below the bound, and more remats and copies do not lower it") {
  std::mt19937 random(4);
  struct Found {
    int rounds = 0, reached = 0;
    double bounds = 0, times = 0;
  } with_copies, with_collectives;
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_schedule(random, 5 + pick(random, 40));
    const bool talks = llvm::any_of(problem.ops, [](const RematOp& op) { return op.is_collective(); });
    Found& all = talks ? with_collectives : with_copies;
    const double bound = min_total_us(problem),
                 found = overlap_within(problem, std::numeric_limits<int64_t>::max()).total_us;
    CHECK(bound <= found * (1 + 1e-12));
    ++all.rounds;
    all.reached += found <= bound * (1 + 1e-9);
    all.bounds += bound;
    all.times += found;
    RematPlan plan;
    for (int32_t position = 1; position <= problem.op_count(); ++position)
      if (int32_t op = pick(random, position); pick(random, 4) == 0 && problem.ops[static_cast<size_t>(op)].repeatable)
        plan.remats.push_back({position, op});
    CHECK(bound <= min_total_us(apply_to_problem(problem, plan)) * (1 + 1e-12));
  }
  CHECK(with_copies.reached > with_copies.rounds / 3);
  CHECK(with_copies.times < 1.05 * with_copies.bounds);
  CHECK(with_collectives.times < 1.25 * with_collectives.bounds);
}

TEST_CASE("overlap: close to the best intervals there are") {
  std::mt19937 random(2);
  double found = 0, best = 0, tight = 0;
  for (int round = 0; round < 200; ++round) {
    RematProblem problem = random_schedule(random, 6);
    std::vector<CopyInterval> intervals = overlap_within(problem, 0).intervals;
    if (intervals.empty() || intervals.size() > 4) continue;
    int64_t limit = plain_peak(problem) + pick(random, 8);
    for (CopyInterval& interval : intervals) {
      if (problem.ops[static_cast<size_t>(interval.op)].engine == Engine::ToHost) interval.done = interval.op + 1;
      interval.issue = interval.op;
    }
    found += overlap_within(problem, limit).total_us;
    tight += overlap_within(problem, 0).total_us;
    const double least = shortest(problem, limit, intervals);
    CHECK(min_total_us(problem) <= least * (1 + 1e-12));
    best += least;
  }
  // Most of what can be gained; another order of the copies may gain more.
  CHECK(tight - found > 0.6 * (tight - best));
}

TEST_SUITE_END();
