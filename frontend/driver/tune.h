#pragma once

// Times kernels on the device in this machine, on the shapes of a plan.

#include "ir/machine/kernel_catalog.h"
#include "ir/machine/timing_cache.h"
#include "ir/plan/plan.h"

namespace plimsoll {

struct TuneReport {
  int64_t calls = 0, kernels = 0;  // distinct calls with a choice, and how many kernels were timed for them
};

// For every distinct call of the plan that several kernels accept, each of them alone under the workspace that planning
// gives it, on random numbers. A kernel that refuses a call, or whose results differ from those of the first that does
// not, is kept as slower than any other. Errors where the plan's kind of device is not here.
Result<TuneReport> tune(const Plan& plan, const KernelCatalog& catalog, TimingCache& times);

// Does `other` differ from `results` by no more than rounding does, by the norm of what is finite there? Both are the
// starts of all results of a call.
bool same_but_for_rounding(llvm::ArrayRef<float> results, llvm::ArrayRef<float> other);

}  // namespace plimsoll
