#pragma once

#include "ir/machine/engine_clock.h"
#include "passes/offload/overlap.h"

#include "llvm/ADT/SmallVector.h"

namespace plimsoll::remat {

// What a schedule gives the three engines to do.
struct EngineWork {
  struct Copy {
    int32_t op;
    Engine engine;
    double cost_us;
    llvm::SmallVector<int32_t, 1> after, before;  // the copies whose results it reads, and those that read its results
  };

  explicit EngineWork(const RematProblem& problem);

  std::vector<double> compute_us;  // by op; 0 for copies
  std::vector<Copy> copies;        // by op
  DuplexShares shares;
  CopyInterference interference;

  double total_compute_us() const;
};

struct CopyTimeline {
  // By op, and for the end: when compute arrives, and when it goes on after waiting for copies.
  std::vector<double> arrive_us, leave_us;
  std::vector<double> start_us, finish_us;  // of the copy, by interval
  double total_us = 0;
  std::vector<int32_t> first_issue, first_wait, next_issue, next_wait;  // lists of intervals by op
  EngineClock clock;
  std::vector<size_t> places;  // by interval: the copy's place in its engine
};

// `intervals` are those of all copies, in the order of their ops. Overwrites `line` and reuses its memory.
void run_engines(const EngineWork& work, llvm::ArrayRef<CopyInterval> intervals, CopyTimeline& line);

}  // namespace plimsoll::remat
