#include "passes/fit/overlap.h"

#include "doctest/doctest.h"

// The three channels by hand.

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

}  // namespace

TEST_CASE("overlap: three channels by hand") {
  RecomputeProblem problem = round_trip();
  // Nothing overlaps: 10 + 30 + 40 + 20 + 5.
  CHECK(simulate(problem, {{1, 1, 2}, {3, 3, 4}}) == 105);
  // The store hides behind 40 us of compute: 10 + 40 + 20 + 5.
  CHECK(simulate(problem, {{1, 1, 3}, {3, 3, 4}}) == 75);
  // The fetch is issued early but needs what the store brings at 40: ready at 60.
  CHECK(simulate(problem, {{1, 1, 3}, {3, 2, 4}}) == 65);
  // Not waited for by compute, and still running after it.
  CHECK(simulate(problem, {{1, 1, 5}, {3, 2, 5}}) == 60);
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

TEST_SUITE_END();
