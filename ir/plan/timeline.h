#pragma once

// Predicts when each instruction of a function runs. Computing runs in order, with copies between memories and
// collectives beside it.

#include "ir/plan/plan.h"

namespace plimsoll {

struct Timeline {
  std::vector<double> start_us, end_us;     // by instruction, from the function's start
  double total_us = 0;                      // until compute and all copies are through
  double stalled_us = 0;                    // the share of it in which compute waits for copies
  double to_host_us = 0, to_device_us = 0;  // work time of each copy engine
  double ranks_us = 0;                      // work time of collectives and transfers between stages
  double exposed_us = 0;                    // the share of it in which compute waits for them
  double awaited_us = 0;                    // time in which compute waits for another stage, transfers not included
};

// Collectives follow each other, see ir/machine/collective_link.h; neighbours of one kind are one launch. A copy starts
// when its direction is free and all compute before it is done, holds compute up by its interference where it is
// issued, and is slower while a copy of the other direction runs.
Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device);

struct StageFunction {
  const PlanFunction* function;
  const DeviceDescription* device;
};
// The same for a function of all stages of a pipeline, which start together and wait for each other where one sends to
// another or all add up. A stage whose peer never comes goes on alone.
std::vector<Timeline> predict_timelines(llvm::ArrayRef<StageFunction> stages);
// Of one function on all stages of a plan.
std::vector<Timeline> predict_timelines(const Plan& plan, size_t function);

}  // namespace plimsoll
