#pragma once

#include "ir/machine/engine_clock.h"
#include "passes/offload/overlap.h"

#include "llvm/ADT/SmallVector.h"

namespace plimsoll::remat {

// What the three engines are given of a sequence.
struct EngineWork {
  struct Copy {
    int32_t op;
    Engine engine;
    double cost_us;
    llvm::SmallVector<int32_t, 1> after, before;  // copies whose results it reads; that read its results
  };

  explicit EngineWork(const RematProblem& problem);

  std::vector<double> compute_us;  // by op; 0 for copies
  std::vector<Copy> copies;        // by op
  DuplexShares shares;
  CopyInterference interference;

  double total_compute_us() const;
};

struct CopyTimeline {
  std::vector<double> arrive_us,
      leave_us;  // by op, and for the end: when compute gets there, and when it has waited there
  std::vector<double> start_us, finish_us;  // by interval: of its copy
  double total_us = 0;
  std::vector<int32_t> first_issue, first_wait, next_issue, next_wait;  // lists of intervals by op
  EngineClock clock;
  std::vector<size_t> places;  // by interval: of its copy on the link
};

// `intervals` are those of all copies, by op. Overwrites `line`, whose memory serves again.
void run_engines(const EngineWork& work, llvm::ArrayRef<CopyInterval> intervals, CopyTimeline& line);

}  // namespace plimsoll::remat
