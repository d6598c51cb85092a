#include "passes/add_lengths.h"

#include "ir/plan/check.h"
#include "ir/plan/lengths.h"
#include "ir/plan/summary.h"
#include "ir/plan/timeline.h"
#include "ir/support/units.h"
#include "passes/derive_stages.h"
#include "passes/fuse_launches.h"
#include "passes/lower_to_plan.h"
#include "passes/states_of_plan.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

Status check_can_add(const Plan& plan) {
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states)
      if (stage->slots[static_cast<size_t>(state.slot)].space == MemorySpace::Host)
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

// What a rank has of each state is the plan's.
Status check_states(const PlanDraft& draft, const Plan& plan) {
  const Graph& step = draft.program.functions.front();
  for (const State& state : step.states) {
    const Value& value = step.value(state.value);
    const auto planned = llvm::find_if(plan.states, [&](const PlanState& each) {
      return plan.slots[static_cast<size_t>(each.slot)].name == value.name;
    });
    if (planned == plan.states.end())
      return model_error("--lengths: " + step.name + " has states that depend on the length, " + value.name);
    const Type& type = plan.slots[static_cast<size_t>(planned->slot)].type;
    if (type != value.type || planned->divisions != state.divisions || planned->channels_last != state.channels_last)
      return model_error("--lengths: " + step.name + " has " + to_string(value.type) + " of " + value.name +
                         ", the longest step has " + to_string(type));
  }
  return Status::success();
}

// The step of each stage.
Result<std::vector<Derived>> derive_as_planned(CleanModel shorter, const TrainingRequest& request,
                                               const StageDevices& devices, const Plan& plan) {
  const Mesh& mesh = plan.mesh;
  const bool has_parts = mesh[MeshAxis::Tensor] > 1, has_stages = mesh[MeshAxis::Stage] > 1;
  TrainingRequest rows = request;  // the partition that no choice goes into
  if (has_parts && !has_stages) rows.mesh[MeshAxis::Tensor] = 1, rows.zero = 0;
  Result<ForwardModel> forward = prepare_forward(std::move(shorter), rows, devices.preferences());
  if (!forward) return forward.takeError();
  std::vector<Derived> stages;
  if (has_stages) {
    TrainingRequest planned = request;
    planned.micro_batches = plan.pipeline.micro_batches;
    const StageRuns runs = runs_named(plan.pipeline.schedule, mesh[MeshAxis::Stage]);
    Result<DerivedStages> derived = derive_stages_as_planned(*forward, planned, runs, devices, forward->passes,
                                                             {stages_of_states(plan), states_of_rank(plan)});
    if (!derived) return derived.takeError();
    return std::move(derived->stages);
  }
  if (has_parts) {
    const llvm::StringMap<OwnState> own = states_of_rank(plan);
    if (Status s = divide_as_planned(forward->graph, mesh, own, PlannedFor::Training, request.sum_dtype)) return s;
    if (Result<bool> changed = forward->passes.run(forward->graph, "simplify, cse, dce"); !changed)
      return changed.takeError();
  }
  TrainingRequest step = request;
  step.quantize.turned_bytes = bytes_of_stored_transposes(plan);
  Result<Derived> derived = derive_program(*forward, {}, step, devices.device(0), devices.catalog(0), forward->passes,
                                           {.keeps_copies = keeps_copies(plan)});
  if (!derived) return derived.takeError();
  stages.push_back(std::move(*derived));
  return stages;
}

Result<Plan> add_to_stage(const Derived& derived, int64_t length, const Plan& stage) {
  const PlanDraft draft = only_step(derived.draft, length);
  if (Status s = check_states(draft, stage)) return s;
  Result<Plan> grown = add_to_plan({.draft = draft, .budget_bytes = 0}, stage);
  if (!grown) return grown;
  const int64_t budget = grown->arenas.front().budget_bytes;
  if (grown->promised_bytes() > budget)
    return budget_error("--lengths: " + draft.program.functions.front().name + " needs " +
                        format_bytes(grown->promised_bytes()) + " without remats, the budget is " +
                        format_bytes(budget));
  fuse_launches(*grown, *draft.catalog);
  return grown;
}

}  // namespace

Result<Plan> add_shorter_step(CleanModel shorter, int64_t length, const TrainingRequest& request,
                              const StageDevices& devices, const Plan& plan) {
  if (Status s = check_can_add(plan)) return s;
  Result<std::vector<Derived>> derived = derive_as_planned(std::move(shorter), request, devices, plan);
  if (!derived) return in_context("--lengths", derived.takeError());
  Plan first = plan;
  const std::vector<Plan> later = std::move(first.later_stages);
  first.later_stages.clear();
  Result<Plan> grown = add_to_stage(derived->front(), length, first);
  if (!grown) return grown;
  for (const Plan& stage : later) {
    Result<Plan> with = add_to_stage((*derived)[static_cast<size_t>(stage.stage)], length, stage);
    if (!with) return with;
    grown->later_stages.push_back(std::move(*with));
  }
  const size_t function = grown->functions.size() - 1;
  double us = 0;
  for (const Timeline& timeline : predict_timelines(*grown, function)) us = std::max(us, timeline.total_us);
  grown->decisions.push_back({"lengths", grown->functions.back().name, "predicted " + format_us(us),
                              "for batches of samples that are no longer, in the bytes of the longest step"});
  if (Status s = check_plan(*grown)) return s;
  return grown;
}

}  // namespace plimsoll
