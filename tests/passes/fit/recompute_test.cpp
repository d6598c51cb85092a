#include "passes/fit/recompute.h"

#include "passes/fit/sequence.h"

#include "doctest/doctest.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

// The incremental measures against a plain sweep, and the searches against what enumeration finds.

using namespace plimsoll;
using fit::Moment;

TEST_SUITE_BEGIN("unit");

namespace {

int pick(std::mt19937& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

RecomputeProblem random_problem(std::mt19937& random, int ops) {
  RecomputeProblem problem;
  auto new_value = [&](int64_t bytes) {
    problem.value_bytes.push_back(bytes);
    problem.live_out.push_back(pick(random, 12) == 0);
    return static_cast<int32_t>(problem.value_bytes.size() - 1);
  };
  new_value(4);  // an input
  for (int o = 0; o < ops; ++o) {
    RecomputeOp op;
    op.cost_us = 1 + pick(random, 9);
    op.workspace_bytes = pick(random, 4) == 0 ? pick(random, 6) : 0;
    op.repeatable = pick(random, 8) != 0;
    if (pick(random, 8) == 0) op.repeat_until = o + pick(random, ops);
    std::set<int32_t> reads;
    int values = static_cast<int>(problem.value_bytes.size());
    for (int i = pick(random, 3); i >= 0; --i) reads.insert(pick(random, 2) == 0 ? values - 1 : pick(random, values));
    op.reads.assign(reads.begin(), reads.end());
    bool in_place = pick(random, 3) == 0;
    int32_t over = op.reads[0];
    op.writes.push_back(new_value(in_place ? problem.value_bytes[static_cast<size_t>(over)] : 1 + pick(random, 9)));
    if (in_place) op.in_place.push_back({op.writes[0], over});
    if (pick(random, 4) == 0) op.writes.push_back(new_value(1 + pick(random, 9)));
    problem.ops.push_back(op);
  }
  return problem;
}

// Walks the sequence with nothing but its definition.
int64_t plain_peak(const RecomputeProblem& problem, const std::set<std::pair<int32_t, int32_t>>& repeats) {
  std::vector<int32_t> sequence;
  for (int32_t stage = 0; stage <= problem.op_count(); ++stage) {
    for (auto [before, op] : repeats)
      if (before == stage) sequence.push_back(op);
    if (stage < problem.op_count()) sequence.push_back(stage);
  }
  int end = static_cast<int>(sequence.size());
  struct Life { int first, last; int32_t value; };
  std::vector<Life> lives;
  std::map<int32_t, size_t> latest;  // by value
  std::vector<std::map<int32_t, size_t>> read_at(sequence.size()), written_at(sequence.size());
  for (size_t v = 0; v < problem.value_bytes.size(); ++v) {
    bool written = llvm::any_of(problem.ops, [&](const RecomputeOp& op) { return llvm::is_contained(op.writes, static_cast<int32_t>(v)); });
    if (written) continue;
    latest[static_cast<int32_t>(v)] = lives.size();
    lives.push_back({0, -1, static_cast<int32_t>(v)});
  }
  for (int i = 0; i < end; ++i) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
    for (int32_t v : op.reads) {
      lives[latest[v]].last = i;
      read_at[static_cast<size_t>(i)][v] = latest[v];
    }
    for (int32_t v : op.writes) {
      latest[v] = lives.size();
      written_at[static_cast<size_t>(i)][v] = lives.size();
      lives.push_back({i, i, v});
    }
  }
  for (auto [v, life] : latest)
    if (problem.live_out[static_cast<size_t>(v)]) lives[life].last = end;
  int64_t peak = 0;
  for (int i = 0; i <= end; ++i) {
    int64_t live = 0;
    for (const Life& life : lives)
      if (life.first <= i && i <= life.last) live += problem.value_bytes[static_cast<size_t>(life.value)];
    if (i < end) {
      const RecomputeOp& op = problem.ops[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
      live += op.workspace_bytes;
      for (const TakeOver& pair : op.in_place)
        if (lives[read_at[static_cast<size_t>(i)][pair.read]].last == i) live -= problem.value_bytes[static_cast<size_t>(pair.written)];
    }
    peak = std::max(peak, live);
  }
  return peak;
}

// The least added time of at most three repeats within the limit; infinite when there are none.
double cheapest_of_three(const RecomputeProblem& problem, int64_t limit) {
  std::vector<std::pair<int32_t, int32_t>> all;
  for (int32_t o = 0; o < problem.op_count(); ++o)
    for (int32_t t = o + 1; t <= problem.op_count(); ++t)
      if (problem.ops[static_cast<size_t>(o)].repeatable && t <= problem.ops[static_cast<size_t>(o)].repeat_until) all.push_back({t, o});
  double best = std::numeric_limits<double>::infinity();
  auto extend = [&](auto&& self, size_t from, std::set<std::pair<int32_t, int32_t>>& chosen, double cost) -> void {
    if (cost >= best) return;
    if (plain_peak(problem, chosen) <= limit) {
      best = cost;
      return;
    }
    if (chosen.size() == 3) return;
    for (size_t i = from; i < all.size(); ++i) {
      chosen.insert(all[i]);
      self(self, i + 1, chosen, cost + problem.ops[static_cast<size_t>(all[i].second)].cost_us);
      chosen.erase(all[i]);
    }
  };
  std::set<std::pair<int32_t, int32_t>> none;
  extend(extend, 0, none, 0);
  return best;
}

}  // namespace

TEST_CASE("recompute: incremental measures equal a plain sweep") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_problem(random, 3 + pick(random, 20));
    fit::Sequence sequence(problem);
    std::set<std::pair<int32_t, int32_t>> repeats;
    for (int change = 0; change < 40; ++change) {
      Moment at{1 + pick(random, problem.op_count()), pick(random, problem.op_count())};
      if (!repeats.empty() && pick(random, 2) == 0) {
        auto old = *std::next(repeats.begin(), pick(random, static_cast<int>(repeats.size())));
        sequence.erase({old.first, old.second});
        repeats.erase(old);
      } else if (sequence.may_repeat(at)) {
        sequence.insert(at);
        repeats.insert({at.stage, at.op});
      }
      REQUIRE(sequence.memory().peak() == plain_peak(problem, repeats));
    }
    sequence.rewind(0);
    CHECK(sequence.memory().peak() == plain_peak(problem, {}));
    CHECK(sequence.added_us() == doctest::Approx(0));
  }
}

TEST_CASE("recompute: as cheap as the best three repeats, and never below the bound") {
  std::mt19937 random(2);
  int solved = 0, missed = 0;
  for (int round = 0; round < 40; ++round) {
    RecomputeProblem problem = random_problem(random, 8);
    int64_t peak = plain_peak(problem, {}), limit = peak - 1 - pick(random, static_cast<int>(peak / 4) + 1);
    RecomputePlan plan = recompute_within(problem, limit, {.seconds = 0.02});
    double best = cheapest_of_three(problem, limit);
    if (best < std::numeric_limits<double>::infinity()) {
      bool as_cheap = plan.peak_bytes <= limit && plan.added_us <= best + 1e-9;
      ++(as_cheap ? solved : missed);
    }
    if (plan.peak_bytes <= limit) CHECK(least_added_us(problem, limit) <= plan.added_us + 1e-9);
    std::set<std::pair<int32_t, int32_t>> repeats;
    for (const Repeat& repeat : plan.repeats) repeats.insert({repeat.before, repeat.op});
    CHECK(plain_peak(problem, repeats) == plan.peak_bytes);
  }
  CHECK(solved > 8);
  CHECK(missed <= 1);  // the search is not complete
}

TEST_CASE("recompute: the same problem gives the same plan") {
  std::mt19937 random(3);
  RecomputeProblem problem = random_problem(random, 60);
  int64_t limit = plain_peak(problem, {}) * 3 / 4;
  RecomputePlan one = recompute_within(problem, limit, {.seconds = 0.2});
  CHECK(one.repeats == recompute_within(problem, limit, {.seconds = 0.2}).repeats);
}

TEST_SUITE_END();
