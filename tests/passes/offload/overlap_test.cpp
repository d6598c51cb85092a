#include "passes/offload/overlap.h"

#include "passes/remat/remat_schedule.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

// The three channels by hand, and windows of random sequences against their definition.

using namespace plimsoll;

TEST_SUITE_BEGIN("unit");

namespace {

RecomputeOp op(Channel channel, double cost_us, llvm::SmallVector<int32_t, 4> reads, llvm::SmallVector<int32_t, 2> writes) {
  RecomputeOp result;
  result.channel = channel;
  result.cost_us = cost_us;
  result.reads = std::move(reads);
  result.writes = std::move(writes);
  return result;
}

// A value is made, copied to the host (30 us), fetched (20 us) and read; 10, 40, 5 us of compute around it.
RecomputeProblem round_trip() {
  RecomputeProblem problem;
  problem.value_bytes = {100, 0, 100, 100, 8};  // made, on the host, fetched, other work, the end
  problem.live_out = {0, 0, 0, 0, 1};
  problem.ops = {op(Channel::Compute, 10, {}, {0}), op(Channel::ToHost, 30, {0}, {1}), op(Channel::Compute, 40, {}, {3}),
                 op(Channel::ToDevice, 20, {1}, {2}), op(Channel::Compute, 5, {2}, {4})};
  return problem;
}

CopyShares random_shares(std::mt19937& random) { return {1 - pick(random, 9) / 12.0, 1 - pick(random, 9) / 12.0}; }

// A sequence with repeats and copies in place.
RecomputeProblem random_sequence(std::mt19937& random, int ops) {
  RecomputeProblem problem = random_problem(random, ops);
  add_offloads(random, problem);
  fit::Sequence sequence(problem);
  Extras repeats, fetches;
  for (int change = 0; change < ops; ++change) {
    int32_t stage = 1 + pick(random, problem.op_count());
    fit::Moment at = sequence.moment_before(stage, sequence.maker(pick(random, sequence.maker_count(stage)), stage));
    if (!sequence.may_insert(at)) continue;
    sequence.insert_with_ancestors(at, 3);
  }
  for (fit::Moment at : sequence.extras()) {
    if (sequence.is_fetch(at.op)) fetches.insert({sequence.stage_after(at), sequence.op(at.op).writes[0]});
    if (!sequence.is_copy(at.op)) repeats.insert({at.stage, at.op});
  }
  RecomputeProblem result = with_extras(problem, repeats, fetches);
  for (RecomputeOp& o : result.ops) o.repeat_until = result.op_count();
  result.copy_shares = random_shares(random);
  result.copy_toll = {static_cast<double>(ops % 2), ops % 3 * 0.1};
  return result;
}

// The three channels by what each has left to do, from one moment where any of that changes to the next.
double plain_total(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows) {
  std::vector<double> left;  // by window; what waits in its channel has all of it
  std::vector<size_t> lines[2];
  for (const CopyWindow& window : windows) left.push_back(problem.ops[static_cast<size_t>(window.op)].cost_us);
  auto is_to_device = [&](size_t w) { return problem.ops[static_cast<size_t>(windows[w].op)].channel == Channel::ToDevice; };
  double now = 0;
  // Until compute has done `us`, or the copy `until` is through; with neither, all copies.
  auto pass = [&](double us, int until) {
    for (;;) {
      for (auto& line : lines)
        while (!line.empty() && left[line.front()] < 1e-9) line.erase(line.begin());
      if (until >= 0 ? left[static_cast<size_t>(until)] < 1e-9 : us < 1e-9) return;
      const bool both = !lines[0].empty() && !lines[1].empty();
      const double rates[] = {both ? problem.copy_shares.to_host : 1, both ? problem.copy_shares.to_device : 1};
      double step = until >= 0 ? std::numeric_limits<double>::infinity() : us;
      for (int way = 0; way < 2; ++way)
        if (!lines[way].empty()) step = std::min(step, left[lines[way].front()] / rates[way]);
      for (int way = 0; way < 2; ++way)
        if (!lines[way].empty()) left[lines[way].front()] -= step * rates[way];
      now += step;
      us -= step;
    }
  };
  for (int32_t o = 0; o <= problem.op_count(); ++o) {
    for (size_t w = 0; w < windows.size(); ++w)
      if (windows[w].done == o) pass(0, static_cast<int>(w));
    for (size_t w = 0; w < windows.size(); ++w)
      if (windows[w].issue == o) {
        lines[is_to_device(w)].push_back(w);
        pass(problem.copy_toll.us(problem.ops[static_cast<size_t>(windows[w].op)].cost_us), -1);
      }
    if (o < problem.op_count() && problem.ops[static_cast<size_t>(o)].channel == Channel::Compute) pass(problem.ops[static_cast<size_t>(o)].cost_us, -1);
  }
  return now;
}

// The shortest time of any windows within the limit, by trying all.
double shortest(const RecomputeProblem& problem, int64_t limit, std::vector<CopyWindow> windows, size_t next = 0) {
  auto is_late = [&](const CopyWindow& fetch) {  // issued before compute has waited for what it reads
    return llvm::any_of(windows, [&](const CopyWindow& store) {
      const RecomputeOp& copy = problem.ops[static_cast<size_t>(store.op)];
      return llvm::is_contained(copy.writes, problem.ops[static_cast<size_t>(fetch.op)].reads[0]) && store.done > fetch.issue;
    });
  };
  if (next == windows.size() && llvm::any_of(windows, is_late)) return std::numeric_limits<double>::infinity();
  if (next == windows.size()) return plain_peak(problem, windows) <= limit ? simulate(problem, windows) : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  CopyWindow& window = windows[next];
  const RecomputeOp& copy = problem.ops[static_cast<size_t>(window.op)];
  if (copy.channel == Channel::ToHost) {
    for (; window.done <= problem.op_count(); ++window.done) best = std::min(best, shortest(problem, limit, windows, next + 1));
    return best;
  }
  int32_t earliest = copy.not_before;
  for (int32_t o = 0; o < window.op; ++o)
    if (llvm::is_contained(problem.ops[static_cast<size_t>(o)].writes, copy.reads[0])) earliest = std::max(earliest, o + 1);
  for (; window.issue >= earliest; --window.issue) best = std::min(best, shortest(problem, limit, windows, next + 1));
  return best;
}

}  // namespace

TEST_CASE("overlap: three channels by hand") {
  RecomputeProblem problem = round_trip();
  // Nothing overlaps: 10 + 30 + 40 + 20 + 5.
  CHECK(simulate(problem, {{1, 1, 2}, {3, 3, 4}}) == 105);
  // The store hides behind 40 us of compute: 10 + 40 + 20 + 5.
  CHECK(simulate(problem, {{1, 1, 3}, {3, 3, 4}}) == 75);
  // Compute waits for the store, and the fetch hides: 10 + 30 + 40 + 5.
  CHECK(simulate(problem, {{1, 1, 2}, {3, 2, 4}}) == 85);
  // Not waited for by compute, and still running after it: 10 + 40 and 20 from there.
  CHECK(simulate(problem, {{1, 1, 3}, {3, 3, 5}}) == 70);
}

TEST_CASE("overlap: a copy each way by hand") {
  RecomputeProblem problem;
  problem.value_bytes = {100, 0, 100, 8};  // made, on the host, fetched, the end
  problem.live_out = {0, 0, 0, 1};
  problem.ops = {op(Channel::Compute, 10, {}, {0}), op(Channel::ToHost, 30, {0}, {1}), op(Channel::Compute, 10, {}, {}),
                 op(Channel::ToDevice, 20, {}, {2}), op(Channel::Compute, 5, {2}, {3})};
  const std::vector<CopyWindow> windows{{1, 1, 5}, {3, 3, 4}};
  // To the host from 10 to 40, to the device from 20 to 40, and 5.
  CHECK(simulate(problem, windows) == 45);
  // From 20 on each at half its speed. 20 are left of each, done at 60.
  problem.copy_shares = {0.5, 0.5};
  CHECK(simulate(problem, windows) == doctest::Approx(65));
  // The one to the device is through at 20 + 20 / 0.8 = 45; of the other, 20 - 25 * 0.2 = 15 are left, until 60.
  problem.copy_shares = {0.2, 0.8};
  CHECK(simulate(problem, windows) == doctest::Approx(60));
}

TEST_CASE("overlap: channels equal a plain account of what each has left") {
  std::mt19937 random(5);
  int contended = 0;
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_sequence(random, 5 + pick(random, 40));
    for (const Overlap& overlap : overlap_ladder(problem, std::numeric_limits<int64_t>::max())) {
      CHECK(overlap.total_us == doctest::Approx(plain_total(problem, overlap.windows)).epsilon(1e-9));
      RecomputeProblem alone = problem;
      alone.copy_shares = {};
      contended += simulate(alone, overlap.windows) < overlap.total_us * (1 - 1e-9);
    }
  }
  CHECK(contended > 50);
}

TEST_CASE("overlap: copies of one direction take turns") {
  RecomputeProblem problem;
  problem.value_bytes = {1, 1, 1};
  problem.live_out = {0, 0, 1};
  problem.ops = {op(Channel::ToDevice, 30, {}, {0}), op(Channel::ToDevice, 30, {}, {1}), op(Channel::Compute, 10, {1}, {}),
                 op(Channel::Compute, 10, {0}, {2})};
  CHECK(simulate(problem, {{0, 0, 3}, {1, 1, 2}}) == 80);
  Overlap tight = overlap_copies(problem, 0);
  CHECK(tight.windows[0].done == 3);
  CHECK(tight.windows[1].done == 2);
  CHECK(tight.total_us == 80);
  CHECK(tight.stalled_us == 60);
}

TEST_CASE("overlap: windows stay within the limit and more room never takes longer") {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    RecomputeProblem problem = random_sequence(random, 5 + pick(random, 40));
    int64_t tight = plain_peak(problem);
    double last = std::numeric_limits<double>::infinity();
    for (int64_t limit : {tight - 1, tight, tight + 2, tight + 5, tight + 10, tight + 1000}) {
      Overlap overlap = overlap_copies(problem, limit);
      CHECK(overlap.peak_bytes <= std::max(limit, tight));
      CHECK(overlap.peak_bytes == plain_peak(problem, overlap.windows));
      CHECK(overlap.total_us == simulate(problem, overlap.windows));
      CHECK(overlap.total_us <= last);
      last = overlap.total_us;
    }
  }
}

TEST_CASE("overlap: a lower limit gives the first rungs of a higher one's ladder") {
  std::mt19937 random(3);
  size_t most = 0;
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_sequence(random, 5 + pick(random, 40));
    const std::vector<Overlap> all = overlap_ladder(problem, std::numeric_limits<int64_t>::max());
    most = std::max(most, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i].peak_bytes <= all[i].limit_bytes);
      if (i > 0) CHECK(all[i].limit_bytes > all[i - 1].limit_bytes);
      if (i > 0) CHECK(all[i].total_us < all[i - 1].total_us);
      const std::vector<Overlap> some = overlap_ladder(problem, all[i].limit_bytes);
      REQUIRE(some.size() == i + 1);
      CHECK(some.back().total_us == all[i].total_us);
    }
  }
  CHECK(most > 2);
}

TEST_CASE("overlap: nothing is below the bound, and more repeats and copies do not lower it") {
  std::mt19937 random(4);
  int reached = 0, rounds = 0;
  double least = 0, most = 0;
  for (; rounds < 100; ++rounds) {
    RecomputeProblem problem = random_sequence(random, 5 + pick(random, 40));
    const double bound = least_total_us(problem), found = overlap_copies(problem, std::numeric_limits<int64_t>::max()).total_us;
    CHECK(bound <= found * (1 + 1e-12));
    reached += found <= bound * (1 + 1e-9);
    least += bound;
    most += found;
    RecomputePlan plan;
    for (int32_t stage = 1; stage <= problem.op_count(); ++stage)
      if (int32_t op = pick(random, stage); pick(random, 4) == 0 && problem.ops[static_cast<size_t>(op)].repeatable) plan.repeats.push_back({stage, op});
    CHECK(bound <= least_total_us(final_sequence(problem, plan)) * (1 + 1e-12));
  }
  CHECK(reached > rounds / 3);
  CHECK(most < 1.05 * least);
}

TEST_CASE("overlap: close to the best windows there are") {
  std::mt19937 random(2);
  double found = 0, best = 0, tight = 0;
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_sequence(random, 6);
    std::vector<CopyWindow> windows = overlap_copies(problem, 0).windows;
    if (windows.empty() || windows.size() > 4) continue;
    int64_t limit = plain_peak(problem) + pick(random, 8);
    for (CopyWindow& window : windows) {
      if (problem.ops[static_cast<size_t>(window.op)].channel == Channel::ToHost) window.done = window.op + 1;
      window.issue = window.op;
    }
    found += overlap_copies(problem, limit).total_us;
    tight += overlap_copies(problem, 0).total_us;
    const double least = shortest(problem, limit, windows);
    CHECK(least_total_us(problem) <= least * (1 + 1e-12));
    best += least;
  }
  // Most of what can be gained; another order of the copies may gain more.
  CHECK(tight - found > 0.6 * (tight - best));
}

TEST_SUITE_END();
