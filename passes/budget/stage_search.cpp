#include "passes/budget/stage_search.h"

#include "ir/plan/summary.h"
#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/fit.h"
#include "passes/budget/program_size.h"
#include "passes/derive_stages.h"

#include <algorithm>

namespace plimsoll {
namespace {

Status refuse_what_is_not_planned(const TrainingRequest& request) {
  const std::string mesh = to_string(request.mesh);
  if (request.split > 1)
    return usage_error("--split: the stages of " + mesh + " have the batch in micro-batches already (--micro-batches)");
  if (request.frontier) return usage_error("--pareto: smaller budgets are not searched for the stages of " + mesh);
  return Status::success();
}

// The stage's plan within the budget; where there is none, the one that needs least.
Result<Plan> fit_stage(Derived& derived, size_t stage, const ForwardModel& forward, const TrainingRequest& request,
                       const DeviceDescription& device) {
  PlanDraft& draft = derived.draft;
  draft.device = with_reserves(device, draft.program, request.mesh);
  FitOptions options;
  options.recompute = request.recompute;
  options.offload = request.offload;
  options.training = forward.summary;
  // All stages together are searched for as long as the program of one rank.
  const double effort = request.effort / static_cast<double>(request.mesh[MeshAxis::Stage]);
  options.search_seconds *= effort;
  if (nodes_of(draft.program) > max_nodes_searched_whole) {
    options.min_share = long_min_share;
    options.offload = false;
  }
  LoweringInput input{draft, request.budget_of_stage(stage, device), request.host_budget_bytes};
  input.placement_seconds *= effort;
  Result<Plan> plain = plain_plan(input, options);
  if (!plain) return plain;
  const int64_t budget = plain->arenas.front().budget_bytes;
  Result<Plan> plan = BudgetFitter(input, options, std::move(*plain), budget).within(budget);
  if (!plan) return plan;
  const std::vector<Decision>& decisions = derived.passes.decisions();
  plan->decisions.insert(plan->decisions.begin(), decisions.begin(), decisions.end());
  return plan;
}

int64_t lacks_bytes(const Plan& plan) { return plan.promised_bytes() - plan.arenas.front().budget_bytes; }

// The plans of all stages as they were cut, each within its budget or the one that needs least.
Result<std::vector<Plan>> fit_stages(DerivedStages& derived, const ForwardModel& forward,
                                     const TrainingRequest& request, const StageDevices& devices) {
  std::vector<std::optional<Result<Plan>>> fitted(derived.stages.size());
  parallel_for(fitted.size(), [&](size_t i) {
    fitted[i].emplace(fit_stage(derived.stages[i], i, forward, request, devices.device(i)));
  });
  Status failed = Status::success();
  std::vector<Plan> plans;
  for (std::optional<Result<Plan>>& plan : fitted) {
    if (!*plan) {
      failed = llvm::joinErrors(std::move(failed), plan->takeError());
      continue;
    }
    (*plan)->mesh = request.mesh;
    (*plan)->pipeline = derived.pipeline;
    (*plan)->stage = static_cast<int32_t>(plans.size());
    plans.push_back(std::move(**plan));
  }
  if (failed) return failed;
  return plans;
}

bool all_fit(llvm::ArrayRef<Plan> plans) { return llvm::all_of(plans, is_within_budget); }

const Plan& that_lacks_most(llvm::ArrayRef<Plan> plans) {
  return *std::max_element(plans.begin(), plans.end(),
                           [](const Plan& a, const Plan& b) { return lacks_bytes(a) < lacks_bytes(b); });
}

int64_t most_lacking(llvm::ArrayRef<StageCut> cuts) {
  int64_t most = 0;
  for (const StageCut& cut : cuts) most = std::max(most, cut.lacks_bytes);
  return most;
}

// What the plan of a stage that does not fit says about its run of blocks, and about the tables.
void learn(const DerivedStages& derived, size_t stage, const Plan& plan, StageFindings& findings) {
  const std::vector<StageCut>& cuts = derived.cuts;
  findings.too_large.emplace_back(cuts[stage].first, stage + 1 < cuts.size() ? cuts[stage + 1].first : derived.blocks);
  findings.unforeseen_bytes += lacks_bytes(plan) - cuts[stage].lacks_bytes;
}

// The tables are right to some percent. Cuts of which they say no better are tried where that decides.
constexpr int max_cuts = 4;
constexpr double table_error = 0.05;

bool are_worth_trying(llvm::ArrayRef<StageCut> cuts, llvm::ArrayRef<Plan> best) {
  const Plan& least_fitting = that_lacks_most(best);
  const auto budget = static_cast<double>(least_fitting.arenas.front().budget_bytes);
  const int64_t lacks = lacks_bytes(least_fitting), promised = most_lacking(cuts);
  return promised < lacks || (promised < unknown_lack && static_cast<double>(lacks) <= table_error * budget);
}

// Cuts the model again where a stage needs more or less than the tables had it need.
Result<std::vector<Plan>> cut_and_fit(PipelineSchedule schedule, const ForwardModel& forward,
                                      const TrainingRequest& request, const StageDevices& devices,
                                      const PassManager& passes) {
  std::vector<StageFindings> findings(static_cast<size_t>(request.mesh[MeshAxis::Stage]));
  std::vector<Plan> best;
  for (int i = 0; i < max_cuts; ++i) {
    Result<DerivedStages> derived =
        derive_stages(forward, request, schedule, devices, i == 0 ? passes : passes.quiet(), findings);
    if (!derived) return derived.takeError();
    if (!best.empty() && !are_worth_trying(derived->cuts, best)) break;
    Result<std::vector<Plan>> plans = fit_stages(*derived, forward, request, devices);
    if (!plans || all_fit(*plans)) return plans;
    for (size_t stage = 0; stage < plans->size(); ++stage)
      if (!is_within_budget((*plans)[stage])) learn(*derived, stage, (*plans)[stage], findings[stage]);
    if (best.empty() || lacks_bytes(that_lacks_most(*plans)) < lacks_bytes(that_lacks_most(best)))
      best = std::move(*plans);
  }
  return best;
}

// All stages in the order of one schedule.
Result<CompileResult> plan_schedule(PipelineSchedule schedule, const ForwardModel& forward,
                                    const TrainingRequest& request, const StageDevices& devices,
                                    const PassManager& passes) {
  Result<std::vector<Plan>> plans = cut_and_fit(schedule, forward, request, devices, passes);
  if (!plans) return plans.takeError();
  CompileResult result;
  result.host_budget_bytes = request.host_budget_bytes;
  result.fits = all_fit(*plans);
  if (!result.fits) {
    for (const Plan& plan : *plans) result.stages.push_back({plan.promised_bytes(), plan.arenas.front().budget_bytes});
    result.plan = that_lacks_most(*plans);
    return result;
  }
  result.plan = std::move(plans->front());
  std::move(plans->begin() + 1, plans->end(), std::back_inserter(result.plan.later_stages));
  result.plan.predicted_step_us = predict_step_us(result.plan);
  for (Plan& stage : result.plan.later_stages) stage.predicted_step_us = result.plan.predicted_step_us;
  return result;
}

bool is_better_result(const CompileResult& a, const CompileResult& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.plan.predicted_step_us < b.plan.predicted_step_us : lacks_bytes(a.plan) < lacks_bytes(b.plan);
}

}  // namespace

Result<CompileResult> search_stages(const ForwardModel& forward, const TrainingRequest& request,
                                    const StageDevices& devices, const CompileHooks& hooks) {
  if (Status s = refuse_what_is_not_planned(request)) return s;
  if (hooks.on_phase) hooks.on_phase("lay out");
  std::optional<CompileResult> best;
  std::string tried;
  for (size_t i = 0; i < std::size(schedule_names); ++i) {
    const auto schedule = static_cast<PipelineSchedule>(i);
    if (request.schedule.value_or(schedule) != schedule) continue;
    Result<CompileResult> result =
        plan_schedule(schedule, forward, request, devices, best ? forward.passes.quiet() : forward.passes);
    if (!result) return result;
    tried += (tried.empty() ? "" : "; ") + schedule_names[i].str() + " " +
             (result->fits ? "takes " + format_us(result->plan.predicted_step_us) : shortfall(*result));
    if (!best || is_better_result(*result, *best)) best = std::move(*result);
  }
  best->plan.decisions.push_back({"schedule-stages", "plan", best->plan.pipeline.schedule, tried});
  return std::move(*best);
}

}  // namespace plimsoll
