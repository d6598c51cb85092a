#pragma once

#include "passes/fit/overlap.h"

namespace plimsoll::fit {

struct CopyTimeline {
  std::vector<double> arrive_us, leave_us;  // by op, and for the end: when compute gets there, and when it has waited there
  std::vector<double> start_us, finish_us;  // by window
  double total_us = 0;
};

CopyTimeline run_channels(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows);

}  // namespace plimsoll::fit
