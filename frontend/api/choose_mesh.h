#pragma once

// A request may leave open how several cards share the job.

#include "frontend/api/job.h"
#include "passes/mesh/mesh_candidates.h"

namespace plimsoll {

// What `request` leaves open of `training`; no cards where that is nothing.
MeshQuestion mesh_question(const CompileRequest& request, const TrainingRequest& training);

// Compiles `job` with `training` in place of its request's, on the mesh that takes least predicted time.
Result<CompileResult> choose_mesh(const Job& job, const TrainingRequest& training, const MeshQuestion& question,
                                  const CompileHooks& hooks = {});

// `training` with the mesh that was chosen for `plan`, if one was.
TrainingRequest with_mesh_of(const Plan& plan, TrainingRequest training);

}  // namespace plimsoll
