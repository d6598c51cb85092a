#pragma once

// Compiles a model at several batches or precisions and keeps the plan that was asked for. A result that does not fit
// is that of the smallest job tried.

#include "frontend/api/job.h"

namespace plimsoll {

// The plan with the least predicted time of a step of `global_batch` samples, over all micro-batches that divide it;
// the rest of a step is accumulated.
Result<CompileResult> compile_global_batch(const Job& job, const TrainingRequest& request, int64_t global_batch,
                                           const CompileHooks& hooks = {});

// The plan of the largest batch that fits.
Result<CompileResult> compile_largest_batch(const Job& job, const TrainingRequest& request,
                                            const CompileHooks& hooks = {});

// The plan with the least predicted time per sample, over the precisions that matrix units of the device are made for:
// fp32 (tf32 where there is that), and bf16, or fp16 where there is no bf16. `compile` makes the plan of a request as
// it is.
using CompileOne = llvm::function_ref<Result<CompileResult>(const TrainingRequest&)>;
Result<CompileResult> compile_fastest_precision(const Job& job, const TrainingRequest& request, CompileOne compile);

}  // namespace plimsoll
