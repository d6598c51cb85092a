#pragma once

#include "frontend/api/job.h"

namespace plimsoll {

// Why `result`, the outcome of `training`, does not fit, and with which options it would fit or need less.
std::string refusal_text(const CompileResult& result, const Job& job, const TrainingRequest& training);

}  // namespace plimsoll
