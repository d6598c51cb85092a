#pragma once

// Plans a pipeline: each of its stages has its own program and is fitted within the budget by itself.

#include "ir/machine/stage_devices.h"
#include "passes/derive_program.h"

namespace plimsoll {

// The plan of the first stage, with those of the others in it. It fits where each of them fits its stage's budget;
// otherwise the plan is that of the stage that lacks most.
Result<CompileResult> search_stages(const ForwardModel& forward, const TrainingRequest& request,
                                    const StageDevices& devices, const CompileHooks& hooks);

// Whether a stage with so many instructions is searched for remats only and down to long_min_share, where its mesh is
// one of many that are compared (TrainingRequest::is_one_of_many).
bool is_long_for_many(int64_t instructions);
// Whether the search for a stage can reach the budget then; `plain` is the stage's plan without remats and copies.
bool may_fit_as_one_of_many(const Plan& plain, int64_t budget_bytes);

}  // namespace plimsoll
