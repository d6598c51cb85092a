#pragma once

// Recompute and offload under a byte budget: which ops of a schedule run again, which values wait on the host, and
// until when, so that the peak of live bytes stays below a limit at the least added time.

#include "ir/machine/engine.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll {

// `written` takes over the bytes of `read` wherever that is the last use of `read`.
struct InPlaceReuse {
  int32_t written, read;
};

struct RematOp {
  double cost_us = 0;  // of its engine's time
  Engine engine = Engine::Compute;
  llvm::SmallVector<int32_t, 4> reads;          // values, each once
  llvm::SmallVector<int32_t, 2> writes;         // values, each written by one op
  llvm::SmallVector<InPlaceReuse, 1> in_place;  // of equal bytes; no value twice
  int64_t workspace_bytes = 0;                  // alive while the op runs
  bool repeatable = true;
  // What it reads beside `reads` holds until this op runs: it may be repeated before that one at the latest.
  int32_t remat_until = std::numeric_limits<int32_t>::max();
  // Of a copy: it may not be issued ahead of this op.
  int32_t not_before = 0;
};

// A value that an op writes may wait on the host instead of on the device.
struct OffloadOption {
  int32_t value;
  double to_host_us, to_device_us;
};

// A value that no op writes is alive from the start. Bytes that are there throughout do not belong in the problem.
struct RematProblem {
  std::vector<RematOp> ops;  // in the order they run
  std::vector<int64_t> value_bytes;
  std::vector<char> live_out;           // by value: read after the last op
  std::vector<OffloadOption> offloads;  // at most one for a value
  DuplexShares duplex_shares;
  CopyInterference copy_interference;

  double compute_us(const RematOp& op) const {
    return op.engine == Engine::Compute ? op.cost_us : copy_interference.us(op.cost_us);
  }
  int32_t op_count() const { return static_cast<int32_t>(ops.size()); }
};

// Op `op` runs once more, right before op `before`; several remats before one op run in the order of their ops.
// before == op_count() is after the last op. Every use reads the latest occurrence before it:
// made by the op, a repeat, or a reload.
struct Remat {
  int32_t before, op;
  friend auto operator<=>(const Remat&, const Remat&) = default;
};

// A copy of `value` back from the host is issued right before base op `before`, ahead of the remats that stand there;
// its bytes are alive from there on. A value with reloads is copied to the host once, issued right after the base op
// that makes it.
struct Reload {
  int32_t before, value;
  friend auto operator<=>(const Reload&, const Reload&) = default;
};

struct RematPlan {
  std::vector<Remat> remats;    // sorted
  std::vector<Reload> reloads;  // sorted
  // By which all three engines are through later with each copy as wide as the plan has it, and 2 % of what is copied.
  double added_us = 0;
  int64_t peak_bytes = 0;  // above the limit that was asked: nothing better was found
};

struct RematOptions {
  double seconds = 10;   // how much work, on a machine of 2023; converted to step counts, no clock is read
  double min_share = 0;  // of the plain peak: a levels ends there
};

// The peak and the added time of remats and reloads, measured from nothing but the problem.
RematPlan measure_remats(const RematProblem& problem, std::vector<Remat> remats, std::vector<Reload> reloads = {});

// What runs: the plan's remats and copies as ops in their places, each with values of its own.
RematProblem apply_to_problem(const RematProblem& problem, const RematPlan& plan);

// Plans for a fixed levels of limits, from the plain peak down, 2 % apart at first and up to 8 % where little is left,
// the highest limit first, as far down as plans were found: those of the lowest limits, up to where a peak is above
// `highest_bytes`; where all are above it, the lowest. Neither levels nor plans depend on `highest_bytes`, and no plan
// adds more time than one for a lower limit. `starts` is a whole levels of the problem without its offloads; empty:
// none. No plan adds more time than that one's.
std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes,
                                    const RematOptions& options = {}, llvm::ArrayRef<RematPlan> starts = {});

// Nothing within the limit adds less time than this; infinite when nothing can be within the limit. The bound is the
// tighter the more `nodes` each of a few exact searches may take.
double min_added_us(const RematProblem& problem, int64_t limit_bytes, int64_t nodes = 200000);

RematProblem with_offloads(RematProblem problem, std::vector<OffloadOption> offloads);

}  // namespace plimsoll
