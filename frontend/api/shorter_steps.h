#pragma once

// Steps of a plan for several lengths of the samples.

#include "frontend/api/job.h"

namespace plimsoll {

// `plan` with a step for each of the request's shorter lengths. `training` is what it was made for, choices included.
Result<Plan> with_shorter_steps(const Job& job, const TrainingRequest& training, Plan plan,
                                const CompileHooks& hooks = {});

}  // namespace plimsoll
