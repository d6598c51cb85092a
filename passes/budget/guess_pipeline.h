#pragma once

// What a pipeline probably takes within a budget, before its stages are searched.

#include "ir/plan/plan.h"

#include <optional>

namespace plimsoll {

// Roughly what a step takes within so many bytes of each device, by remats of the slowest stage that one descent finds.
// `plain` is the plan without remats and copies. None where it has no later stages, or the descent does not get there.
std::optional<double> guess_pipeline_us(const Plan& plain, int64_t budget_bytes);

}  // namespace plimsoll
