#pragma once

// Times kernels on the device in this machine with the shapes of a plan.

#include "ir/machine/kernel_catalog.h"
#include "ir/machine/timing_cache.h"
#include "ir/plan/plan.h"

namespace plimsoll {

struct TuneReport {
  int64_t calls = 0, kernels = 0;  // distinct calls with several kernels, and the kernels timed for them
};

// Times every kernel of every distinct call that several kernels accept: alone, on random numbers, with the workspace
// that planning gives it. A kernel that refuses the call, or whose results differ from those of the first kernel that
// accepts it, is recorded as slower than any other. Fails if this machine lacks the plan's kind of device.
Result<TuneReport> tune(const Plan& plan, const KernelCatalog& catalog, TimingCache& times);

// Tells whether the results of two kernels for one call differ by rounding alone, measured by the norm over their
// finite elements. Both arguments are the first elements of all results.
bool same_but_for_rounding(llvm::ArrayRef<float> results, llvm::ArrayRef<float> other);

}  // namespace plimsoll
