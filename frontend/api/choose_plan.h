#pragma once

// A request may leave the precision, the batch and the mesh open. They are chosen by compiling with several values of
// each. A result that does not fit is that of the smallest job tried.

#include "frontend/api/job.h"

namespace plimsoll {

// Compiles `job` with `training` in place of its request's, and chooses what the request leaves open. A decision of the
// plan gives the numbers that decided.
// - training.precision "auto": the least predicted time per sample, over the precisions that the device's matrix units
//   are made for: fp32 (tf32 where there is that), and bf16, or fp16 where there is no bf16.
// - request.max_batch: the largest batch that fits.
// - request.best_batch: the least predicted time per sample, over batches that fit.
// - request.global_batch: the least predicted time of a step of that many samples, over all micro-batches that divide
//   it; the rest of a step is accumulated.
// - request.cards, request.any_zero: the mesh that takes least predicted time (frontend/api/choose_mesh.h).
Result<CompileResult> choose_plan(const Job& job, const TrainingRequest& training, const CompileHooks& hooks = {});

// `training` with what was chosen for `plan`.
TrainingRequest with_choices_of(const Plan& plan, TrainingRequest training, const CompileRequest& request);

// "a batch of one sample " where the job leaves the batch to us, to which the refusal of a job belongs.
llvm::StringRef tried_batch(const CompileRequest& request);
// Why a result of choose_plan does not fit: its shortfall, after the batch that was tried where a batch was chosen.
std::string refusal_of(const CompileResult& result, const CompileRequest& request);

}  // namespace plimsoll
