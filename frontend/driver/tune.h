#pragma once

// Times kernels on the device in this machine, on the shapes of a plan.

#include "ir/kernel_catalog.h"
#include "ir/plan/plan.h"
#include "ir/timing_cache.h"

namespace plimsoll {

struct TuneReport {
  int64_t calls = 0, kernels = 0;  // distinct calls with a choice, and how many kernels were timed for them
};

// For every distinct call of the plan that several kernels accept, each of them alone under the workspace that planning
// gives it, on random numbers. A kernel that refuses a call is kept as slower than any other. Errors where the plan's kind of device is not here.
Result<TuneReport> tune(const Plan& plan, const KernelCatalog& catalog, TimingCache& times);

}  // namespace plimsoll
