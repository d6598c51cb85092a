#include "passes/remat/remat_schedule.h"

#include "passes/offload/overlap.h"
#include "passes/remat/remat_search.h"
#include "tests/support/fit_problems.h"

#include "doctest/doctest.h"

#include <map>

// The measures that a schedule keeps while remats and copies come and go, against a plain sweep of all ops.

namespace plimsoll {
namespace {

using remat::ProgramPoint;

int64_t peak_with(const RematProblem& problem, const Extras& remats) {
  return plain_peak(with_extras(problem, remats, {}));
}

struct Contents {
  explicit Contents(const remat::RematSchedule& schedule) {
    for (ProgramPoint at : schedule.extras()) {
      const RematOp& op = schedule.op(at.op());
      if (schedule.is_offload(at.op())) offloaded_behind[op.reads[0]] = at.position();
      if (schedule.is_reload(at.op())) reloads.insert({schedule.position_after(at), op.writes[0]});
      if (!schedule.is_copy(at.op())) remats.insert({at.position(), at.op()});
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

}  // namespace

TEST_SUITE_BEGIN("unit");

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
        remats.insert({at.position(), at.op()});
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
      if (schedule.is_offload(at.op()))
        schedule.make_synchronous(at.op());
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

TEST_CASE("remat: a chain that goes on is what it is when inserted anew") {
  std::mt19937 random(7);
  int longer = 0;
  for (int round = 0; round < 400; ++round) {
    RematProblem problem = random_problem(random, 8 + pick(random, 30));
    if (round % 2 == 1) add_offloads(random, problem);
    remat::RematSchedule schedule(problem);
    for (int i = 0; i < 3; ++i) {
      const ProgramPoint at{1 + pick(random, problem.op_count()), pick(random, problem.op_count())};
      if (!schedule.may_insert(at)) continue;
      schedule.forget_journal();
      const std::vector<ProgramPoint> before = schedule.extras().vec();
      remat::RematSchedule::Chain chain(at);
      for (int32_t max_ops : {1, 2, 4, 8}) {
        const size_t shorter = schedule.mark();
        schedule.extend(chain, max_ops);
        longer += max_ops > 1 && schedule.mark() > shorter;
        remat::RematSchedule anew(problem);
        remat::set_extras(anew, before);
        anew.insert_with_ancestors(at, max_ops);
        const Contents contents(schedule), expected(anew);
        REQUIRE(contents.remats == expected.remats);
        REQUIRE(contents.reloads == expected.reloads);
        REQUIRE(schedule.memory().peak() == anew.memory().peak());
        REQUIRE(schedule.added_us() == doctest::Approx(anew.added_us()));
      }
      schedule.rewind(0);
      REQUIRE(llvm::ArrayRef(before) == schedule.extras());
    }
  }
  CHECK(longer > 100);
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

TEST_SUITE_END();

}  // namespace plimsoll
