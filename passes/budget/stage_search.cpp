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

// Cuts the model again where a stage turned out to need more than the tables had it need: for as long as this gives
// other cuts, at most so often.
constexpr int max_cuts = 4;

bool are_same(llvm::ArrayRef<StageCut> a, llvm::ArrayRef<StageCut> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const StageCut& x, const StageCut& y) { return x.first == y.first; });
}

// All stages in the order of one schedule.
Result<CompileResult> plan_schedule(PipelineSchedule schedule, const ForwardModel& forward,
                                    const TrainingRequest& request, const StageDevices& devices, PassManager passes) {
  std::vector<int64_t> unforeseen(static_cast<size_t>(request.mesh[MeshAxis::Stage]), 0);
  std::vector<StageCut> cuts;
  std::vector<Plan> plans;
  for (int i = 0; i < max_cuts; ++i) {
    Result<DerivedStages> derived =
        derive_stages(forward, request, schedule, devices, i == 0 ? passes : passes.quiet(), unforeseen);
    if (!derived) return derived.takeError();
    if (i > 0 && are_same(derived->cuts, cuts)) break;
    Result<std::vector<Plan>> fitted = fit_stages(*derived, forward, request, devices);
    if (!fitted) return fitted.takeError();
    cuts = std::move(derived->cuts);
    plans = std::move(*fitted);
    if (all_fit(plans)) break;
    for (size_t stage = 0; stage < plans.size(); ++stage)
      if (!is_within_budget(plans[stage])) unforeseen[stage] += lacks_bytes(plans[stage]);
  }
  CompileResult result;
  result.host_budget_bytes = request.host_budget_bytes;
  result.fits = all_fit(plans);
  if (!result.fits) {
    result.plan = std::move(*std::max_element(
        plans.begin(), plans.end(), [](const Plan& a, const Plan& b) { return lacks_bytes(a) < lacks_bytes(b); }));
    return result;
  }
  result.plan = std::move(plans.front());
  std::move(plans.begin() + 1, plans.end(), std::back_inserter(result.plan.later_stages));
  result.plan.predicted_step_us = predict_step_us(result.plan);
  for (Plan& stage : result.plan.later_stages) stage.predicted_step_us = result.plan.predicted_step_us;
  return result;
}

bool is_better_result(const CompileResult& a, const CompileResult& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.plan.predicted_step_us < b.plan.predicted_step_us
                : a.plan.promised_bytes() < b.plan.promised_bytes();
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
