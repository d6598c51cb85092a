#pragma once

// Compiles a model at several batches and keeps the plan that was asked for.

#include "frontend/driver/api.h"

namespace plimsoll {

// The plan with the least predicted time of a step of `global_batch` samples, over all micro-batches that divide it; the rest
// of a step is accumulated. Fault::Budget when none of them fits.
Result<Plan> compile_global_batch(const CompileRequest& request, int64_t global_batch, const CompileHooks& hooks = {});

// The plan of the largest batch that fits. Fault::Budget when one sample does not.
Result<Plan> compile_largest_batch(const CompileRequest& request, const CompileHooks& hooks = {});

}  // namespace plimsoll
