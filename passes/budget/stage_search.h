#pragma once

// Plans a pipeline: each of its stages has its own program and is fitted within the budget by itself.

#include "passes/derive_program.h"

namespace plimsoll {

// The plan of the first stage, with those of the others in it. It fits where all of them do.
Result<CompileResult> search_stages(const ForwardModel& forward, const TrainingRequest& request,
                                    const DeviceDescription& device, const KernelCatalog& catalog,
                                    const CompileHooks& hooks);

}  // namespace plimsoll
