#pragma once

// Chooses how the cards share a job: which mesh, what its ranks divide, and how stages take micro-batches.

#include "passes/job.h"
#include "passes/mesh/mesh_estimate.h"

namespace plimsoll {

// What the search needs of its caller.
struct MeshSearchInput {
  const CleanModel& model;
  TrainingRequest request;  // its mesh, zero, micro_batches and schedule are chosen
  MeshQuestion question;    // its batch and stages are filled in
  const KernelCatalog& catalog;
  // The device with the links between a mesh's ranks.
  llvm::function_ref<Result<DeviceDescription>(const Mesh&)> device_for;
  llvm::function_ref<Result<CompileResult>(const TrainingRequest&)> compile;
};

// The plan with the least predicted time that fits; where none does, the one that needs least. Its mesh_search says
// what was tried. Which candidates are compiled does not depend on the budget, and those of fewer cards are among those
// of more; so neither more budget nor one more card gives a slower plan, but for stages that would have been cut again
// (docs/adr/0015-meshes.md). Errors are those of the candidate that
// is estimated to be fastest where none can be compiled.
Result<CompileResult> search_meshes(const MeshSearchInput& input);

// "data=4,stage=2, ZeRO 1, 8 micro-batches in 1f1b"
std::string describe(const TriedMesh& tried);

}  // namespace plimsoll
