#include "frontend/api/choose_mesh.h"

#include "passes/mesh/mesh_search.h"

namespace plimsoll {

MeshQuestion mesh_question(const CompileRequest& request, const TrainingRequest& training) {
  // What each rank has decides where it stands.
  if (request.has_unlike_devices() || !request.budgets.empty() || !training.stage_budgets.empty()) return {.cards = 0};
  MeshQuestion question{.cards = request.cards};
  if (request.cards == 0) {
    if (!request.any_zero || training.mesh[MeshAxis::Data] == 1) return {.cards = 0};
    question.mesh = training.mesh;
    question.cards = training.mesh.ranks();
  }
  if (!request.any_zero) question.zero = training.zero;
  question.micro_batches = training.micro_batches;
  question.schedule = training.schedule;
  return question;
}

Result<CompileResult> choose_mesh(const Job& job, const TrainingRequest& training, const MeshQuestion& question,
                                  const CompileHooks& hooks) {
  if (hooks.on_phase) hooks.on_phase("compare meshes");
  CompileHooks quiet;  // candidates are compiled beside each other
  quiet.pipeline.skip = hooks.pipeline.skip;
  const auto device_for = [&](const Mesh& mesh) { return job.device_for(mesh); };
  const auto compile = [&](const TrainingRequest& request) { return job.compile(request, quiet); };
  return search_meshes({job.model(), training, question, job.catalog(), device_for, compile});
}

TrainingRequest with_mesh_of(const Plan& plan, TrainingRequest training) {
  if (plan.mesh_search.cards == 0) return training;
  const TriedMesh& chosen = plan.mesh_search.compiled.front();
  training.mesh = chosen.mesh;
  training.zero = chosen.zero;
  if (chosen.mesh[MeshAxis::Stage] > 1) training.micro_batches = chosen.pipeline.micro_batches;
  return training;
}

}  // namespace plimsoll
