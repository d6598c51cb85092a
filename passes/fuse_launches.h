#pragma once

// Two instructions of a finished plan become one where a kernel does the work of both in less time.

#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Linear layers with their gelus, in all functions. No slot moves and no peak rises. Returns whether there were any:
// then the predicted time of the step, which is the caller's, is another.
bool fuse_launches(Plan& plan, const KernelCatalog& catalog);

}  // namespace plimsoll
