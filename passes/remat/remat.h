#pragma once

// Rematerialisation and offload under a byte limit: which ops of a schedule run again, which values wait on the host
// and how long, so that the peak of live bytes stays within the limit for the least added time.

#include "ir/engine.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace plimsoll {

// `written` reuses the bytes of `read` in place wherever that is the last use of `read`.
struct InPlaceReuse {
  int32_t written, read;
};

struct RematOp {
  double cost_us = 0;  // time on its engine; of a collective, what computing loses to it at least
  Engine engine = Engine::Compute;
  llvm::SmallVector<int32_t, 4> reads;          // values, each once
  llvm::SmallVector<int32_t, 2> writes;         // values, each written by one op
  llvm::SmallVector<InPlaceReuse, 1> in_place;  // pairs of equal bytes; no value twice
  int64_t workspace_bytes = 0;                  // alive while the op runs
  bool repeatable = true;
  // The op also reads bytes that are no value of the problem and are overwritten by this op, so a remat must stand
  // before.
  int32_t remat_until = std::numeric_limits<int32_t>::max();
  int32_t not_before = 0;  // a copy or collective may not be issued ahead of this op
  double link_us = 0;      // above 0: a collective, which takes the link to other ranks so long
  int32_t kind = 0;        // collectives of one kind that follow each other are one launch

  bool is_collective() const { return link_us > 0; }
  bool computes() const { return engine == Engine::Compute && !is_collective(); }
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
  std::vector<char> live_out;           // by value: it is read after the last op
  std::vector<OffloadOption> offloads;  // at most one for a value
  DuplexShares duplex_shares;
  CopyInterference copy_interference;
  CollectiveShares collective_shares;

  // The compute time that an op takes, or that a copy holds up.
  double compute_us(const RematOp& op) const {
    return op.engine == Engine::Compute ? op.cost_us : copy_interference.us(op.cost_us);
  }
  int32_t op_count() const { return static_cast<int32_t>(ops.size()); }
};

// Op `op` runs once more right before op `before`, or after the last op where before == op_count(). Remats before one
// op run in the order of their ops. Every use reads the latest occurrence before it, be it made by the op, by a remat
// or by a reload.
struct Remat {
  int32_t before, op;
  friend auto operator<=>(const Remat&, const Remat&) = default;
};

// A copy of `value` back from the host is issued right before base op `before`, ahead of the remats that stand there;
// its bytes are alive from there on. A value with reloads is copied to the host once, right after the base op that
// makes it.
struct Reload {
  int32_t before, value;
  friend auto operator<=>(const Reload&, const Reload&) = default;
};

struct RematPlan {
  std::vector<Remat> remats;    // sorted
  std::vector<Reload> reloads;  // sorted
  // Predicted slowdown of the step, plus 2 % of the copy time as a tie-break.
  double added_us = 0;
  int64_t peak_bytes = 0;   // above the limit where no plan within it was found
  int64_t level_bytes = 0;  // the limit it was searched for; 0: none
};

struct RematOptions {
  double seconds = 10;   // of search, see ir/support/search_effort.h
  double min_share = 0;  // of the plain peak: no level is lower
  double spacing = 1;    // how far levels stand apart, as a multiple of the usual
  bool close_levels = false;
  bool is_deep = false;  // makes long chains of ops again where no shorter one lowers the peak
  // Another program may be chosen in its place: of changes to a long problem that are alike, few are tried.
  bool is_one_of_many = false;
};

// The largest peak that may need less than `lowest_bytes` once both are packed. What is searched below it does not
// depend on a budget, and neither does the least that a job needs.
int64_t close_to(int64_t lowest_bytes);

// The peak and the added time of remats and reloads, measured from nothing but the problem.
RematPlan measure_remats(const RematProblem& problem, std::vector<Remat> remats, std::vector<Reload> reloads = {});

// The problem with the plan's remats and copies as ops in their places, each with values of its own.
RematProblem apply_to_problem(const RematProblem& problem, const RematPlan& plan);

// From so many ops on a problem is long: its blocks offer many changes that are alike, so many are made at once, and
// levels far above what a budget asks for are not searched.
inline constexpr int32_t long_ops = 500;

// Whether `plan`, of the level above the plan `below`, is one too many for plans within the limit. Neither depends on
// which limits were asked for.
bool ends_levels(const RematProblem& problem, const RematPlan& plan, const RematPlan& below, int64_t limit_bytes);

// Plans for fixed levels of the peak, from the plain peak down, 2 % apart at first and up to 8 % where little is left.
// Returns those for the lowest levels, highest level first, up to the one that ends those within `highest_bytes`; where
// all are above it, the lowest alone, or with `close_levels` those that are close to it. Levels and plans do not depend
// on `highest_bytes`, and no plan adds more time than one for a lower level, of a long problem one of its group (see
// level_groups.h). `starts` are plans of the problem without its offloads, all of them, or of a long problem those up
// to `highest_bytes`, or empty; no plan adds more time than the start of its level. The same problem and options give
// the same plans on every machine.
std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes,
                                    const RematOptions& options = {}, llvm::ArrayRef<RematPlan> starts = {});

// What a plan within the limit adds that is found quickly, going down once; infinite where that ends above the limit.
double added_us_of_descent(const RematProblem& problem, int64_t limit_bytes);

// No plan within the limit adds less time than this; infinite when no plan can be within the limit. A few exact
// searches tighten the bound; each may search `nodes` nodes.
double min_added_us(const RematProblem& problem, int64_t limit_bytes, int64_t nodes = 200000);

// The same from several ops at once, which counts what an op that runs again needs in turn: higher where that is much,
// lower where little is shed, and 0 where the problem has copies or offers them. Takes a second for 1000 ops.
double min_added_us_of_blocks(const RematProblem& problem, int64_t limit_bytes);

// The same as `min_added_us` from a few ops alone, so that it is quick and not as high, for several limits of one
// problem. With copies in the problem it bounds what is added to its compute and what that loses to these copies.
class PeakBound {
 public:
  explicit PeakBound(RematProblem problem);
  ~PeakBound();
  PeakBound(const PeakBound&) = delete;
  PeakBound& operator=(const PeakBound&) = delete;

  // With at most `host_bytes` of values on the host.
  double min_added_us(int64_t limit_bytes, int64_t host_bytes = std::numeric_limits<int64_t>::max()) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// No plan has a lower peak: at each op, what is alive without the values that may be made again or copied back later.
int64_t min_peak_bytes(const RematProblem& problem);

RematProblem with_offloads(RematProblem problem, std::vector<OffloadOption> offloads);

}  // namespace plimsoll
