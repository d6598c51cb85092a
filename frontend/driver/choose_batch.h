#pragma once

// Compiles a model with several batches or precisions and keeps the best plan.

#include "frontend/api/compile_model.h"

namespace plimsoll {

// Tries every micro-batch that divides `global_batch`, accumulating the rest, and returns the plan with the least
// predicted time per step. Gives Fault::Budget if none fits.
Result<Plan> compile_global_batch(const OpenedModel& model, const CompileRequest& request, int64_t global_batch,
                                  const CompileHooks& hooks = {});

// Returns the plan of the largest batch that fits. Gives Fault::Budget if one sample does not fit.
Result<Plan> compile_largest_batch(const OpenedModel& model, const CompileRequest& request,
                                   const CompileHooks& hooks = {});

// Returns the plan with the least predicted time per sample over the precisions that the device's matrix units support:
// fp32 (tf32 where it exists), and bf16, or fp16 where bf16 is missing. `compile` compiles one request.
using CompileOne = llvm::function_ref<Result<Plan>(const CompileRequest&)>;
Result<Plan> compile_fastest_precision(const CompileRequest& request, CompileOne compile);

}  // namespace plimsoll
