#pragma once

// Changes of a job that does not fit, which would make it fit or need less.

#include "frontend/api/job.h"

namespace plimsoll {

// Why `result`, the outcome of `training`, does not fit, with what changes to the job would need and take: each is
// planned where that is a matter of seconds, else estimated ("about").
std::string refusal_text(const CompileResult& result, const Job& job, const TrainingRequest& training);

}  // namespace plimsoll
