#pragma once

// Fits a job into its budget: the program as it is, and where that needs remats or copies also with the batch of what
// follows some value in chunks, whichever is fastest.

#include "passes/derive_program.h"

namespace plimsoll {

// Search work of a short search, as a share of the usual.
inline constexpr double short_effort = 0.05;

// Errors: the model has no value to split behind as the request asks.
Result<CompileResult> search_splits(const ForwardModel& forward, const TrainingRequest& request,
                                    const DeviceDescription& device, const KernelCatalog& catalog,
                                    const CompileHooks& hooks);

}  // namespace plimsoll
