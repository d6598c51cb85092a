#pragma once

// Fits a model's training program into its budget, as it is or with a region split along the batch.

#include "passes/budget/fit.h"
#include "passes/derive_program.h"

namespace plimsoll {

// The fastest plan found within the budget. Errors as fit_budget's; what the least plan needs is the least of all
// splits.
Result<Plan> fit_split(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device,
                       const KernelCatalog& catalog, const CompileHooks& hooks);

}  // namespace plimsoll
