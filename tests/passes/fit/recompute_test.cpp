#include "passes/fit/recompute.h"

#include "passes/fit/sequence.h"

#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <algorithm>

// The incremental measures against a plain sweep, and the searches against what enumeration finds.

using namespace plimsoll;
using fit::Moment;

TEST_SUITE_BEGIN("unit");

namespace {

int64_t peak_with(const RecomputeProblem& problem, const Extras& repeats, const Extras& fetches = {}) {
  return plain_peak(with_extras(problem, repeats, fetches));
}

// What the extras make the three channels take longer, in two parts that end and start with the plain peak; copies count 2 % besides.
double plain_added_us(const RecomputeProblem& problem, const Extras& repeats, const Extras& fetches) {
  int32_t peak_op = fit::Sequence(problem).memory().peak_moment().stage;
  double base[2] = {0, 0}, compute[2] = {0, 0}, to_host[2] = {0, 0}, to_device[2] = {0, 0}, copied = 0;
  for (int32_t o = 0; o < problem.op_count(); ++o) base[o > peak_op] += problem.ops[static_cast<size_t>(o)].cost_us;
  for (auto [before, o] : repeats) compute[before > peak_op] += problem.ops[static_cast<size_t>(o)].cost_us;
  for (const OffloadOption& option : problem.offloads) {
    bool used = false;
    for (auto [before, v] : fetches) {
      if (v != option.value) continue;
      used = true;
      to_device[before > peak_op] += option.to_device_us;
      copied += option.to_device_us;
    }
    if (!used) continue;
    int32_t maker = 0;
    while (!llvm::is_contained(problem.ops[static_cast<size_t>(maker)].writes, option.value)) ++maker;
    to_host[maker > peak_op] += option.to_host_us;
    copied += option.to_host_us;
  }
  double added = 0.02 * copied;
  for (int part : {0, 1}) added += std::max({base[part] + compute[part], to_host[part], to_device[part]}) - base[part];
  return added;
}

Extras extras_of(llvm::ArrayRef<Repeat> repeats) {
  Extras result;
  for (const Repeat& repeat : repeats) result.insert({repeat.before, repeat.op});
  return result;
}

Extras extras_of(llvm::ArrayRef<Fetch> fetches) {
  Extras result;
  for (const Fetch& fetch : fetches) result.insert({fetch.before, fetch.value});
  return result;
}

// The least added time of at most `most` repeats and fetches within the limit; infinite when there are none.
double cheapest_of(int most, const RecomputeProblem& problem, int64_t limit) {
  fit::Sequence sequence(problem);
  std::vector<Moment> all;
  for (int32_t stage = 1; stage <= problem.op_count(); ++stage)
    for (int32_t i = 0; i < sequence.maker_count(stage); ++i)
      if (Moment at = sequence.moment_before(stage, sequence.maker(i, stage)); sequence.may_insert(at)) all.push_back(at);
  double best = std::numeric_limits<double>::infinity();
  auto extend = [&](auto&& self, size_t from, int left) -> void {
    if (sequence.added_us() >= best) return;
    if (sequence.memory().peak() <= limit) {
      best = sequence.added_us();
      return;
    }
    if (left == 0) return;
    for (size_t i = from; i < all.size(); ++i) {
      sequence.insert(all[i]);
      self(self, i + 1, left - 1);
      sequence.erase(all[i]);
    }
  };
  extend(extend, 0, most);
  return best;
}

}  // namespace

TEST_CASE("recompute: incremental measures equal a plain sweep") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_problem(random, 3 + pick(random, 20));
    fit::Sequence sequence(problem);
    Extras repeats;
    for (int change = 0; change < 40; ++change) {
      Moment at{1 + pick(random, problem.op_count()), pick(random, problem.op_count())};
      if (!repeats.empty() && pick(random, 2) == 0) {
        auto old = *std::next(repeats.begin(), pick(random, static_cast<int>(repeats.size())));
        sequence.erase({old.first, old.second});
        repeats.erase(old);
      } else if (sequence.may_insert(at)) {
        sequence.insert(at);
        repeats.insert({at.stage, at.op});
      }
      REQUIRE(sequence.memory().peak() == peak_with(problem, repeats));
    }
    sequence.rewind(0);
    CHECK(sequence.memory().peak() == plain_peak(problem));
    CHECK(sequence.added_us() == doctest::Approx(0));
  }
}

TEST_CASE("recompute: incremental measures with fetches equal a plain sweep") {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_problem(random, 3 + pick(random, 20));
    add_offloads(random, problem);
    fit::Sequence sequence(problem);
    Extras repeats, fetches;
    for (int change = 0; change < 40; ++change) {
      int32_t stage = 1 + pick(random, problem.op_count());
      Moment at = sequence.moment_before(stage, sequence.maker(pick(random, sequence.maker_count(stage)), stage));
      if (!sequence.extras().empty() && pick(random, 2) == 0) at = sequence.extras()[static_cast<size_t>(pick(random, static_cast<int>(sequence.extras().size())))];
      bool is_fetch = sequence.is_fetch(at.op);
      Extras& extras = is_fetch ? fetches : repeats;
      std::pair<int32_t, int32_t> extra{sequence.stage_after(at), is_fetch ? sequence.op(at.op).writes[0] : at.op};
      if (extras.erase(extra)) {
        sequence.erase(at);
      } else if (sequence.may_insert(at)) {
        sequence.insert(at);
        extras.insert(extra);
      }
      REQUIRE(sequence.memory().peak() == peak_with(problem, repeats, fetches));
      if (!problem.offloads.empty()) REQUIRE(sequence.added_us() == doctest::Approx(plain_added_us(problem, repeats, fetches)));
    }
    sequence.rewind(0);
    CHECK(sequence.memory().peak() == plain_peak(problem));
    CHECK(sequence.added_us() == doctest::Approx(0));
  }
}

TEST_CASE("recompute: as cheap as the best three repeats, and never below the bound") {
  std::mt19937 random(2);
  int solved[2] = {0, 0}, missed[2] = {0, 0};
  for (int round = 0; round < 80; ++round) {
    bool with_offloads = round % 2 == 1;
    RecomputeProblem problem = random_problem(random, 8);
    if (with_offloads) add_offloads(random, problem);
    int64_t peak = plain_peak(problem), limit = peak - 1 - pick(random, static_cast<int>(peak / 4) + 1);
    RecomputePlan plan = recompute_within(problem, limit, {.seconds = 0.01});
    double best = cheapest_of(3, problem, limit);
    if (best < std::numeric_limits<double>::infinity()) {
      bool as_cheap = plan.peak_bytes <= limit && plan.added_us <= best + 1e-9;
      ++(as_cheap ? solved : missed)[with_offloads];
    }
    if (plan.peak_bytes <= limit) CHECK(least_added_us(problem, limit) <= plan.added_us + 1e-9);
    CHECK(peak_with(problem, extras_of(plan.repeats), extras_of(plan.fetches)) == plan.peak_bytes);
  }
  for (int kind : {0, 1}) {
    CHECK(solved[kind] > 8);
    CHECK(missed[kind] <= 1);  // the search is not complete
  }
}

TEST_CASE("recompute: the same problem gives the same plan") {
  std::mt19937 random(3);
  RecomputeProblem problem = random_problem(random, 60);
  int64_t limit = plain_peak(problem) * 3 / 4;
  RecomputePlan one = recompute_within(problem, limit, {.seconds = 0.2});
  CHECK(one.repeats == recompute_within(problem, limit, {.seconds = 0.2}).repeats);
}

// 8 ops make 10 bytes each, 8 more read them, last first; each runs 10 us.
RecomputeProblem there_and_back(double copy_us) {
  RecomputeProblem problem;
  for (int32_t o = 0; o < 16; ++o) {
    RecomputeOp op;
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

TEST_CASE("recompute: what hides behind compute is copied instead") {
  // 80 bytes wait at the middle; four of the first seven values must be elsewhere there for 40.
  RecomputePlan hidden = recompute_within(there_and_back(10), 40, {.seconds = 0.05});
  CHECK(hidden.peak_bytes <= 40);
  CHECK(hidden.repeats.empty());
  CHECK(hidden.added_us == doctest::Approx(0.02 * 2 * 10 * static_cast<double>(hidden.fetches.size())));
  // Copying one value takes longer than all compute.
  RecomputePlan repeated = recompute_within(there_and_back(1000), 40, {.seconds = 0.05});
  CHECK(repeated.peak_bytes <= 40);
  CHECK(repeated.fetches.empty());
}

TEST_CASE("recompute: with offloads, no plan of the ladder takes longer than one for less") {
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    RecomputeProblem problem = random_problem(random, 40);
    RecomputeProblem repeats_only = problem;
    add_offloads(random, problem);
    std::vector<RecomputePlan> ladder = recompute_ladder(problem, plain_peak(problem), {.seconds = 0.1});
    REQUIRE(ladder.size() > 1);
    for (size_t i = 1; i < ladder.size(); ++i) CHECK(ladder[i - 1].added_us <= ladder[i].added_us + 1e-9);
    for (const RecomputePlan& plan : ladder)
      CHECK(peak_with(problem, extras_of(plan.repeats), extras_of(plan.fetches)) == plan.peak_bytes);
    // What repeats alone reach is reached, and for no more.
    for (const RecomputePlan& plan : recompute_ladder(repeats_only, plain_peak(problem), {.seconds = 0.1})) {
      auto as_low = llvm::find_if(ladder, [&](const RecomputePlan& other) { return other.peak_bytes <= plan.peak_bytes; });
      REQUIRE(as_low != ladder.end());
      CHECK(as_low->added_us <= plan.added_us + 1e-9);
    }
  }
}

TEST_SUITE_END();
