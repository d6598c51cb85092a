#pragma once

// Compiles a model at several batches or precisions and keeps the plan that was asked for.

#include "frontend/api/compile_model.h"

namespace plimsoll {

// The plan with the least predicted time of a step of `global_batch` samples, over all micro-batches that divide it;
// the rest of a step is accumulated. Fault::Budget when none of them fits.
Result<Plan> compile_global_batch(const OpenedModel& model, const CompileRequest& request, int64_t global_batch,
                                  const CompileHooks& hooks = {});

// The plan of the largest batch that fits. Fault::Budget when one sample does not.
Result<Plan> compile_largest_batch(const OpenedModel& model, const CompileRequest& request,
                                   const CompileHooks& hooks = {});

// The plan that takes the least predicted time a sample, over the precisions that matrix units of the device are made
// for: fp32 (tf32 where there is that), and bf16, or fp16 where there is no bf16. `compile` makes the plan of a request
// as it is.
using CompileOne = llvm::function_ref<Result<Plan>(const CompileRequest&)>;
Result<Plan> compile_fastest_precision(const CompileRequest& request, CompileOne compile);

}  // namespace plimsoll
