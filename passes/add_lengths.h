#pragma once

// The function "train_step.LENGTH" of a plan: the same step for shorter samples, over the same states. Steps run one at
// a time, so that the transient bytes of the longest are free for the others.

#include "ir/machine/stage_devices.h"
#include "passes/derive_program.h"

namespace plimsoll {

// `shorter` is the model with inputs of that length, and `request` the one that `plan` was made for. The function is
// planned without remats and copies to the host. Which stage has which states, and how ranks divide them, is as in the
// plan. Errors: it needs more than the plan's budget so, it has other states, or the plan keeps states on the host.
Result<Plan> add_shorter_step(CleanModel shorter, int64_t length, const TrainingRequest& request,
                              const StageDevices& devices, const Plan& plan);

}  // namespace plimsoll
