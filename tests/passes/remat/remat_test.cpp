#include "passes/remat/remat.h"

#include "passes/offload/overlap.h"
#include "passes/remat/remat_search.h"

#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <algorithm>

// The incremental measures against a plain sweep, and the searches against what enumeration finds.

using namespace plimsoll;
using fit::Moment;

TEST_SUITE_BEGIN("unit");

namespace {

int64_t peak_with(const RecomputeProblem& problem, const Extras& repeats) { return plain_peak(with_extras(problem, repeats, {})); }

struct Contents {
  explicit Contents(const fit::Sequence& sequence) {
    for (Moment at : sequence.extras()) {
      const RecomputeOp& op = sequence.op(at.op);
      if (sequence.is_store(at.op)) stored_behind[op.reads[0]] = at.stage;
      if (sequence.is_fetch(at.op)) fetches.insert({sequence.stage_after(at), op.writes[0]});
      if (!sequence.is_copy(at.op)) repeats.insert({at.stage, at.op});
    }
  }

  Extras repeats, fetches;
  std::map<int32_t, int32_t> stored_behind;  // by value: the base op behind which it is on the host
};

// The windows of an expanded sequence: stores until they are through, fetches until they are first read.
std::vector<CopyWindow> windows_of(const ExpandedSequence& expanded, const Contents& contents) {
  const RecomputeProblem& problem = expanded.problem;
  std::vector<CopyWindow> windows;
  for (auto [value, place] : expanded.stores) {
    // Behind a base op stand its stores; then comes what is issued later.
    int32_t done = expanded.places[static_cast<size_t>(contents.stored_behind.at(value))] + 1;
    while (problem.ops[static_cast<size_t>(done)].channel == Channel::ToHost) ++done;
    windows.push_back({place, place, done});
  }
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    if (op.channel != Channel::ToDevice) continue;
    int32_t done = o + 1;
    while (done < problem.op_count() && !llvm::is_contained(problem.ops[static_cast<size_t>(done)].reads, op.writes[0])) ++done;
    windows.push_back({o, o, done});
  }
  std::sort(windows.begin(), windows.end(), [](const CopyWindow& a, const CopyWindow& b) { return a.op < b.op; });
  return windows;
}

int64_t peak_with(const RecomputeProblem& problem, const Contents& contents) {
  ExpandedSequence expanded = expand(problem, contents.repeats, contents.fetches);
  return plain_peak(expanded.problem, windows_of(expanded, contents));
}

// As long as the channels take, and 2 % of what is copied.
double plain_added_us(const RecomputeProblem& problem, const Contents& contents) {
  ExpandedSequence expanded = expand(problem, contents.repeats, contents.fetches);
  double added = simulate(expanded.problem, windows_of(expanded, contents));
  for (const RecomputeOp& op : problem.ops) added -= op.cost_us;
  for (const RecomputeOp& op : expanded.problem.ops)
    if (op.channel != Channel::Compute) added += 0.02 * op.cost_us;
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

TEST_CASE("recompute: incremental measures with copies equal a plain sweep") {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    RecomputeProblem problem = random_problem(random, 3 + pick(random, 20));
    add_offloads(random, problem);
    if (problem.offloads.empty()) continue;
    problem.copy_shares = {1 - round % 3 * 0.25, 1 - round % 4 * 0.2};
    problem.copy_toll = {round % 5 * 0.5, round % 3 * 0.1};
    fit::Sequence sequence(problem);
    for (int change = 0; change < 40; ++change) {
      int32_t stage = 1 + pick(random, problem.op_count());
      Moment at = sequence.moment_before(stage, sequence.maker(pick(random, sequence.maker_count(stage)), stage));
      if (!sequence.extras().empty() && pick(random, 2) == 0) at = sequence.extras()[static_cast<size_t>(pick(random, static_cast<int>(sequence.extras().size())))];
      if (sequence.is_store(at.op))
        sequence.hurry(at.op);
      else if (sequence.has(at))
        sequence.erase(at);
      else if (sequence.may_insert(at))
        sequence.insert(at);
      REQUIRE(sequence.memory().peak() == peak_with(problem, Contents(sequence)));
      REQUIRE(sequence.added_us() == doctest::Approx(plain_added_us(problem, Contents(sequence))));
    }
    sequence.rewind(0);
    CHECK(sequence.memory().peak() == plain_peak(problem));
    CHECK(sequence.added_us() == doctest::Approx(0));
  }
}

TEST_CASE("recompute: the final sequence has a plan's repeats and copies in their places") {
  std::mt19937 random(6);
  for (int round = 0; round < 40; ++round) {
    RecomputeProblem problem = random_problem(random, 30);
    add_offloads(random, problem);
    fit::Sequence sequence(problem);
    for (int change = 0; change < 30; ++change) {
      int32_t stage = 1 + pick(random, problem.op_count());
      Moment at = sequence.moment_before(stage, sequence.maker(pick(random, sequence.maker_count(stage)), stage));
      if (sequence.may_insert(at)) sequence.insert(at);
    }
    const RecomputePlan plan = fit::plan_of(sequence);
    const RecomputeProblem final = final_sequence(problem, plan);
    const ExpandedSequence expanded = expand(problem, extras_of(plan.repeats), extras_of(plan.fetches));
    REQUIRE(final.op_count() == expanded.problem.op_count());
    CHECK(plain_peak(final) == plain_peak(expanded.problem));
    CHECK(least_total_us(final) == doctest::Approx(least_total_us(expanded.problem)));
    for (int32_t o = 0; o < final.op_count(); ++o) {
      const RecomputeOp &op = final.ops[static_cast<size_t>(o)], &other = expanded.problem.ops[static_cast<size_t>(o)];
      CHECK(op.channel == other.channel);
      CHECK(op.cost_us == other.cost_us);
      if (other.repeat_until <= problem.op_count()) CHECK(op.repeat_until == expanded.places[static_cast<size_t>(other.repeat_until)]);
    }
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
    CHECK(plain_peak(with_extras(problem, extras_of(plan.repeats), extras_of(plan.fetches))) <= plan.peak_bytes);
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

TEST_CASE("recompute: a descent that tries what promises most takes less work, and little more time") {
  std::mt19937 random(9);
  RecomputeProblem problem = random_problem(random, 1200);
  add_offloads(random, problem);
  auto descend = [&](fit::Tried tried) {
    fit::Sequence sequence(problem);
    CHECK(fit::lower_peak(sequence, plain_peak(problem) * 3 / 4, tried));
    return std::pair(sequence.memory().steps(), sequence.added_us());
  };
  auto [all_steps, all_us] = descend(fit::Tried::All);
  auto [few_steps, few_us] = descend(fit::Tried::Promising);
  CHECK(few_steps < 0.85 * static_cast<double>(all_steps));
  CHECK(few_us < 1.05 * all_us);
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

TEST_CASE("recompute: a ladder ends at the least share asked for") {
  std::mt19937 random(6);
  RecomputeProblem problem = random_problem(random, 60);
  const auto ends_at = [&](double least_share) {
    const std::vector<RecomputePlan> ladder = recompute_ladder(problem, plain_peak(problem), {.seconds = 0.1, .least_share = least_share});
    return ladder.size();
  };
  CHECK(ends_at(1) == 1);
  CHECK(ends_at(0.9) == 6);  // the plain plan, and five rungs of 2 %
  CHECK(ends_at(0) > 6);
}

TEST_CASE("recompute: with offloads, no plan of the ladder takes longer than one for less") {
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    RecomputeProblem problem = random_problem(random, 40);
    RecomputeProblem repeats_only = problem;
    add_offloads(random, problem);
    std::vector<RecomputePlan> starts = recompute_ladder(repeats_only, plain_peak(problem), {.seconds = 0.025});
    std::vector<RecomputePlan> ladder = recompute_ladder(problem, plain_peak(problem), {.seconds = 0.1}, starts);
    REQUIRE(ladder.size() > 1);
    for (size_t i = 1; i < ladder.size(); ++i) CHECK(ladder[i - 1].added_us <= ladder[i].added_us + 1e-9);
    for (const RecomputePlan& plan : ladder)
      CHECK(plain_peak(with_extras(problem, extras_of(plan.repeats), extras_of(plan.fetches))) <= plan.peak_bytes);
    // What repeats alone reach is reached, and for no more.
    for (const RecomputePlan& plan : starts) {
      auto as_low = llvm::find_if(ladder, [&](const RecomputePlan& other) { return other.peak_bytes <= plan.peak_bytes; });
      REQUIRE(as_low != ladder.end());
      CHECK(as_low->added_us <= plan.added_us + 1e-9);
    }
  }
}

TEST_SUITE_END();
