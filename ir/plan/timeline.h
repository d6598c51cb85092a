#pragma once

// When each instruction of a function runs, as predicted: computing in order, copies between memories beside it.

#include "ir/plan/plan.h"

namespace plimsoll {

struct Timeline {
  std::vector<double> start_us, end_us;     // by instruction, from the function's start
  double total_us = 0;                      // until the last computation and the last copy are through
  double stalled_us = 0;                    // of that, computing waits for copies
  double to_host_us = 0, to_device_us = 0;  // the two copy engines at work
};

// The copies of one direction follow each other; each holds computing up by its interference where it is issued. One
// starts when its direction is free and all computing before it is done, and is slower while a copy of the other
// direction runs.
Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device);

}  // namespace plimsoll
