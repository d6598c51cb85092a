#pragma once

#include "ir/machine/engine_clock.h"
#include "passes/offload/overlap.h"

#include "llvm/ADT/SmallVector.h"

#include <memory>

namespace plimsoll::remat {

// What a schedule gives the engines to do. Collectives are copies between ranks here.
struct EngineWork {
  struct Copy {
    int32_t op;
    Engine engine;
    double cost_us;                               // alone
    int32_t kind;                                 // of a collective
    llvm::SmallVector<int32_t, 1> after, before;  // the copies whose results it reads, and those that read its results
  };

  explicit EngineWork(const RematProblem& problem);

  std::vector<double> compute_us;  // by op; 0 for copies
  std::vector<bool> computes;      // by op
  std::vector<Copy> copies;        // by op
  DuplexShares shares;
  CopyInterference interference;
  CollectiveShares collectives;

  // With what computing loses to the copies and collectives at least.
  double total_compute_us() const;
};

struct CopyTimeline {
  // By op, and for the end: when compute arrives, and when it goes on after waiting for copies.
  std::vector<double> arrive_us, leave_us;
  std::vector<double> start_us, finish_us;  // of the copy, by interval
  std::vector<double> through_us;           // by interval: until when whoever waits for the copy waits
  double total_us = 0;
  std::vector<int32_t> first_issue, first_wait, next_issue, next_wait;  // lists of intervals by op
  EngineClock clock;
  std::vector<size_t> places;  // by interval: the copy's place in its engine
};

// `intervals` are those of all copies, in the order of their ops. Overwrites `line` and reuses its memory.
void run_engines(const EngineWork& work, llvm::ArrayRef<CopyInterval> intervals, CopyTimeline& line);

// Which copies get bytes first where the limit does not leave enough for all: those that are waited for later, such as
// copies to the host, or those that are issued earlier.
enum class FirstServed : uint8_t { Done, Issue };

// How far a copy's interval may reach where the bytes that it reads or writes have their place. A collective keeps its
// interval.
struct CopyBounds {
  int32_t earliest_issue;
  int32_t earliest_done, latest_done;
};

// The intervals of a schedule's copies and the bytes alive with them.
class CopyIntervals {
 public:
  explicit CopyIntervals(const RematProblem& problem);  // as short as can be
  // Others of the same schedule.
  CopyIntervals(const CopyIntervals& other, std::vector<CopyInterval> intervals, std::vector<CopyBounds> bounds);

  // Widens intervals within the limit as long as that saves time, until the time is `enough_us`. Copies of a direction
  // keep their order. A wider interval may cost time where the directions slow each other down, so the best are kept.
  void widen(int64_t limit, FirstServed first, double enough_us = 0);

  // Waits for collectives right before their readers, whatever bytes that holds.
  void wait_for_readers();

  // Waits for collectives as late as costs neither bytes nor time: ranks are never quite in step, so one may take
  // longer.
  void wait_late();

  // Issues collectives earlier by some of the whole time, for the same reason, where that costs neither time nor a
  // higher peak.
  void issue_early();

  // Issues copies as early, and waits for them as late, as their bounds allow, where that costs no time: the link may
  // be slower than it is said to be. Copies of a direction keep their order.
  void use_bounds();

  // Shortens each interval by what makes compute earlier by little or nothing.
  void give_back();

  // The copies that an engine or compute waits for although their intervals in `wanted` are longer.
  std::vector<size_t> late_copies(llvm::ArrayRef<CopyInterval> wanted) const;

  llvm::ArrayRef<CopyInterval> intervals() const { return intervals_; }
  llvm::ArrayRef<CopyBounds> bounds() const { return bounds_; }
  double total_us() const { return line_.total_us; }
  const std::vector<double>& clock_us() const { return line_.leave_us; }  // by op, when it begins; and the end
  int64_t peak_bytes() const;
  llvm::ArrayRef<int64_t> live_bytes() const { return live_; }  // by op, and at the end
  // What a copy to the device writes, or what is alive one op longer where the copy to the host takes that long.
  int64_t moved_bytes(size_t copy) const {
    const CopyInterval& interval = intervals_[copy];
    return op(interval).engine == Engine::ToHost ? held_bytes(interval, interval.done) : written_bytes(interval);
  }
  int32_t earliest_issue(size_t copy) const;  // of one to the device, or of a collective

 private:
  struct Life {
    int32_t made = -1;   // the op that makes it; -1: alive from the start
    int32_t last = -1;   // the last op that uses it
    int32_t held = -1;   // the op up to which copies to the host read it
    int64_t reused = 0;  // bytes that its last use reuses in place, unless a copy still reads it
  };

  const RematOp& op(const CopyInterval& interval) const { return problem_->ops[interval.op]; }
  int64_t bytes(int32_t value) const { return problem_->value_bytes[value]; }
  Life& life(int32_t value) { return lives_[value]; }
  const Life& life(int32_t value) const { return lives_[value]; }
  void collect_lives();
  void make_tight();
  void collect_movable();
  int32_t latest_done(size_t copy) const;
  llvm::ArrayRef<size_t> moved_issues(Engine engine) const {
    return engine == Engine::ToDevice ? to_device_issues_ : ranks_issues_;
  }
  int64_t written_bytes(const CopyInterval& interval) const;
  void latest_starts(Engine engine, const std::vector<double>& needed_us);
  void run() { run_engines(*work_, intervals_, line_); }
  void recount();
  void shorten();
  void shorten_issues(Engine engine);
  void widen_issues(Engine engine, int64_t limit);
  void widen_dones(int64_t limit);
  bool reuses(const CopyInterval& interval, int32_t value) const;
  int64_t held_bytes(const CopyInterval& interval, int32_t at) const;

  const RematProblem* problem_;
  std::shared_ptr<const EngineWork> work_;
  std::vector<Life> lives_;  // by value
  std::vector<CopyInterval> intervals_;
  std::vector<int32_t> due_;        // by interval: the latest op that may wait for it
  std::vector<CopyBounds> bounds_;  // by interval, where there are any
  // Intervals whose issues are chosen, by engine, and those whose ends are. Collectives with bounds keep their place.
  std::vector<size_t> to_device_issues_, ranks_issues_, dones_;
  std::vector<int64_t> live_;      // by op
  std::vector<double> latest_us_;  // by interval, see latest_starts
  CopyTimeline line_;
  // Reused from call to call.
  std::vector<size_t> by_start_;
  std::vector<int32_t> from_;
  std::vector<int64_t> change_;
};

}  // namespace plimsoll::remat
