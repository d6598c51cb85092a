#pragma once

// Recompute and offload under a byte budget: which ops of a sequence run again, which values wait on the host, and until
// when, so that the peak of live bytes stays below a limit at the least added time.

#include "ir/machine/engine.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll {

// `written` takes over the bytes of `read` wherever that is the last use of `read`.
struct TakeOver {
  int32_t written, read;
};

struct RecomputeOp {
  double cost_us = 0;                       // of its channel's time
  Channel channel = Channel::Compute;
  llvm::SmallVector<int32_t, 4> reads;      // values, each once
  llvm::SmallVector<int32_t, 2> writes;     // values, each written by one op
  llvm::SmallVector<TakeOver, 1> in_place;  // of equal bytes; no value twice
  int64_t workspace_bytes = 0;              // alive while the op runs
  bool repeatable = true;
  // What it reads beside `reads` holds until this op runs: it may be repeated before that one at the latest.
  int32_t repeat_until = std::numeric_limits<int32_t>::max();
  // Of a copy: it may not be issued ahead of this op.
  int32_t not_before = 0;
};

// A value that an op writes may wait on the host instead of on the device.
struct OffloadOption {
  int32_t value;
  double to_host_us, to_device_us;
};

// A value that no op writes is alive from the start. Bytes that are there throughout do not belong in the problem.
struct RecomputeProblem {
  std::vector<RecomputeOp> ops;      // in the order they run
  std::vector<int64_t> value_bytes;
  std::vector<char> live_out;        // by value: read after the last op
  std::vector<OffloadOption> offloads;  // at most one for a value
  CopyShares copy_shares;
  CopyToll copy_toll;

  double compute_us(const RecomputeOp& op) const { return op.channel == Channel::Compute ? op.cost_us : copy_toll.us(op.cost_us); }
  int32_t op_count() const { return static_cast<int32_t>(ops.size()); }
};

// Op `op` runs once more, right before op `before`; several repeats before one op run in the order of their ops.
// before == op_count() is after the last op. Every use reads the latest occurrence before it:
// made by the op, a repeat, or a fetch.
struct Repeat {
  int32_t before, op;
  friend auto operator<=>(const Repeat&, const Repeat&) = default;
};

// A copy of `value` back from the host is issued right before base op `before`, ahead of the repeats that stand there; its bytes are
// alive from there on. A value with fetches is copied to the host once, issued right after the base op that makes it.
struct Fetch {
  int32_t before, value;
  friend auto operator<=>(const Fetch&, const Fetch&) = default;
};

struct RecomputePlan {
  std::vector<Repeat> repeats;  // sorted
  std::vector<Fetch> fetches;   // sorted
  // By which all three channels are through later with each copy as wide as the plan has it, and 2 % of what is copied.
  double added_us = 0;
  int64_t peak_bytes = 0;       // above the limit that was asked: nothing better was found
};

struct RecomputeOptions {
  double seconds = 10;  // how much work, on a machine of 2023; converted to step counts, no clock is read
  uint64_t seed = 1;
  double least_share = 0;  // of the plain peak: a ladder ends there
};

// The peak and the added time of repeats and fetches, measured from nothing but the problem.
RecomputePlan measure_repeats(const RecomputeProblem& problem, std::vector<Repeat> repeats, std::vector<Fetch> fetches = {});

// What runs: the plan's repeats and copies as ops in their places, each with values of its own.
RecomputeProblem final_sequence(const RecomputeProblem& problem, const RecomputePlan& plan);

// The same problem, limit and options give the same plan on every machine.
RecomputePlan recompute_within(const RecomputeProblem& problem, int64_t limit_bytes, const RecomputeOptions& options = {});

// Plans for a fixed ladder of limits, from the plain peak down, 2 % apart at first and up to 8 % where little is left, the highest limit
// first, as far down as plans were found: those of the lowest limits, up to where a peak is above `highest_bytes`; where all are above
// it, the lowest. Neither ladder nor plans depend on `highest_bytes`, and no plan adds more time than one for a lower limit.
// `starts` is a whole ladder of the problem without its offloads; empty: none. No plan adds more time than that one's.
std::vector<RecomputePlan> recompute_ladder(const RecomputeProblem& problem, int64_t highest_bytes, const RecomputeOptions& options = {},
                                            llvm::ArrayRef<RecomputePlan> starts = {});

// Nothing within the limit adds less time than this; infinite when nothing can be within the limit. The bound is the tighter the more
// `nodes` each of a few exact searches may take.
double least_added_us(const RecomputeProblem& problem, int64_t limit_bytes, int64_t nodes = 200000);

RecomputeProblem with_offloads(RecomputeProblem problem, std::vector<OffloadOption> offloads);

}  // namespace plimsoll
