#include "passes/add_lengths.h"

#include "ir/plan/check.h"
#include "ir/plan/lengths.h"
#include "ir/plan/timeline.h"
#include "ir/support/units.h"
#include "passes/lower_to_plan.h"

namespace plimsoll {
namespace {

Status check_can_add(const Plan& plan) {
  if (plan.mesh[MeshAxis::Tensor] > 1 || plan.mesh[MeshAxis::Stage] > 1)
    return usage_error("--lengths: ranks along the axes tensor and stage have one length, and the mesh is " +
                       to_string(plan.mesh) + "; ask for --mesh data=" + llvm::Twine(plan.mesh.ranks()) +
                       ", or leave out --lengths");
  for (const PlanState& state : plan.states)
    if (plan.slots[static_cast<size_t>(state.slot)].space == MemorySpace::Host)
      return budget_error(
          "--lengths: the budget puts states on the host, where steps of several lengths cannot share "
          "them; give a larger --budget");
  return Status::success();
}

// The step without what follows it once for all micro-batches.
PlanDraft only_step(PlanDraft draft, int64_t length) {
  draft.program.functions.erase(draft.program.functions.begin() + 1, draft.program.functions.end());
  draft.functions.erase(draft.functions.begin() + 1, draft.functions.end());
  draft.program.functions.front().name = shorter_step_name(length);
  draft.writers(0);
  return draft;
}

}  // namespace

Result<Plan> add_shorter_step(CleanModel shorter, int64_t length, const TrainingRequest& request,
                              const DeviceDescription& device, const KernelCatalog& catalog, const Plan& plan) {
  if (Status s = check_can_add(plan)) return s;
  Result<ForwardModel> forward = prepare_forward(std::move(shorter), request, catalog.preferences());
  if (!forward) return forward.takeError();
  Result<Derived> derived = derive_program(*forward, {}, request, device, catalog, forward->passes);
  if (!derived) return derived.takeError();
  const PlanDraft draft = only_step(std::move(derived->draft), length);
  Result<Plan> grown = add_to_plan({.draft = draft, .budget_bytes = 0}, plan);
  if (!grown) return grown;
  const std::string name = draft.program.functions.front().name;
  if (grown->states.size() != plan.states.size())
    return model_error("--lengths: " + name + " has states that depend on the length");
  const Arena& arena = grown->arenas.front();
  if (grown->promised_bytes() > arena.budget_bytes)
    return budget_error("--lengths: " + name + " needs " + format_bytes(grown->promised_bytes()) +
                        " without remats, the budget is " + format_bytes(arena.budget_bytes));
  const size_t function = grown->functions.size() - 1;
  grown->decisions.push_back({"lengths", name,
                              "predicted " + format_us(predict_timelines(*grown, function).front().total_us),
                              "for batches of samples that are no longer, in the bytes of the longest step"});
  if (Status s = check_plan(*grown)) return s;
  return grown;
}

}  // namespace plimsoll
