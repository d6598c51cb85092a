#include "passes/budget/stage_search.h"

#include "ir/plan/summary.h"
#include "ir/plan/timeline.h"
#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/fit.h"
#include "passes/budget/host_shares.h"
#include "passes/budget/program_size.h"
#include "passes/budget/step_of_stages.h"
#include "passes/derive_stages.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

namespace plimsoll {
namespace {

Status refuse_what_is_not_planned(const TrainingRequest& request) {
  const std::string mesh = to_string(request.mesh);
  if (request.split > 1)
    return usage_error("--split: the stages of " + mesh + " have the batch in micro-batches already (--micro-batches)");
  if (request.frontier) return usage_error("--pareto: smaller budgets are not searched for the stages of " + mesh);
  return Status::success();
}

// Copies and collectives of long programs take long to place beside computing, so fewer limits are searched for, and
// one order: gradients are added up over all micro-batches, which leaves little for early updates to free.
constexpr double long_spacing = 4;

constexpr int64_t max_instructions_of_many = 7000;

bool is_long_plan(const Plan& plain) {
  size_t instructions = 0;
  for (const PlanFunction& function : plain.functions) instructions += function.instructions.size();
  return is_long_for_many(static_cast<int64_t>(instructions));
}

// What the search for a stage's plan starts from.
struct StageFit {
  FitOptions options;
  std::optional<LoweringInput> input;
  std::optional<PlainPlan> plain;

  const Plan& first_plain() const { return plain->first(); }
  int64_t budget_bytes() const { return first_plain().arenas.front().budget_bytes; }
};

Result<std::unique_ptr<StageFit>> prepare_fit(PlanDraft& draft, size_t stage, const ForwardModel& forward,
                                              const TrainingRequest& request, const DeviceDescription& device,
                                              int64_t host_bytes) {
  draft.device = with_reserves(device, draft.program, *draft.catalog, request.mesh);
  auto made = std::make_unique<StageFit>();
  StageFit& fit = *made;
  fit.options.recompute = request.recompute;
  fit.options.offload = request.offload;
  fit.options.training = forward.summary;
  fit.options.is_one_of_many = request.is_one_of_many;
  // All stages together are searched for as long as the program of one rank.
  const double effort = request.effort / static_cast<double>(request.mesh[MeshAxis::Stage]);
  fit.options.search_seconds *= effort;
  if (nodes_of(draft.program) > max_nodes_searched_whole)
    fit.options.spacing = long_spacing, fit.options.both_orders = false;
  fit.input.emplace(LoweringInput{draft, request.budget_of_stage(stage, device), host_bytes});
  fit.input->placement_seconds *= effort;
  fit.input->quick_above_bytes = request.quick_above_bytes > 0 ? request.quick_above_bytes : fit.input->budget_bytes;
  Result<QuickPlan> quick = quick_plain_plan(*fit.input, fit.options);
  if (!quick) return quick.takeError();
  if (request.is_one_of_many && is_long_plan(quick->plan)) {
    fit.options.min_share = long_min_share;
    fit.options.offload = false;
  }
  if (quick->is_final)
    fit.plain.emplace(std::move(quick->plan));
  else
    fit.plain.emplace(std::move(quick->plan), [&fit] { return llvm::cantFail(plain_plan(*fit.input, fit.options)); });
  return made;
}

enum class Layouts : uint8_t { Quick, Searched };

// The stage's plan within the budget; where there is none, the one that needs least. None where a faster one than is
// asked for cannot be found, or where the search is given up.
Result<std::optional<Plan>> fit_stage(const Derived& derived, const StageFit& fit, Layouts layouts, double enough_us) {
  const int64_t budget = fit.budget_bytes();
  Result<std::optional<Plan>> plan = std::optional<Plan>();
  if (layouts == Layouts::Quick)
    *plan = fit.first_plain();
  else
    plan = BudgetFitter(*fit.input, fit.options, *fit.plain, budget).within(budget, enough_us);
  if (!plan || !*plan) return plan;
  const std::vector<Decision>& decisions = derived.passes.decisions();
  (*plan)->decisions.insert((*plan)->decisions.begin(), decisions.begin(), decisions.end());
  return plan;
}

int64_t lacks_bytes(const Plan& plan) { return plan.promised_bytes() - plan.arenas.front().budget_bytes; }

// By stage; a result without a plan is that of a stage which has no plan as fast as is asked for.
using StagePlans = std::vector<std::optional<Result<std::optional<Plan>>>>;

// A stage that has not room enough on its host, or uses nearly all of its share, is fitted again with what the others
// leave.
constexpr double nearly_all = 0.95;

void fit_with_more_of_hosts(StagePlans& fitted, llvm::ArrayRef<int64_t> host_bytes, const TrainingRequest& request,
                            const StepOfStages& step,
                            llvm::function_ref<Result<std::optional<Plan>>(size_t stage, int64_t bytes)> fit) {
  if (request.host_budget_of_host() == 0) return;
  std::vector<HostUse> uses;
  for (size_t i = 0; i < fitted.size(); ++i) {
    if (!*fitted[i] || !**fitted[i]) return;
    const Plan& plan = ***fitted[i];
    const int64_t takes = plan.arenas.size() > 1 ? plan.arenas[1].bytes : 0;
    const bool is_full = static_cast<double>(takes) >= nearly_all * static_cast<double>(host_bytes[i]);
    uses.push_back({host_bytes[i], takes, !is_within_budget(plan) || is_full});
  }
  const std::vector<int64_t> more = more_of_hosts(
      uses, request.mesh.ranks_per_stage(), request.ranks_per_host > 0 ? request.ranks_per_host : request.mesh.ranks());
  parallel_for(fitted.size(), [&](size_t i) {
    if (more[i] == 0) return;
    Result<std::optional<Plan>> again = fit(i, host_bytes[i] + more[i]);
    if (!again || !*again || !step.is_better(i, **again, ***fitted[i])) return llvm::consumeError(again.takeError());
    fitted[i].emplace(std::move(again));
  });
}

// Stages by the computing that they have to do, the most first: the likeliest to have no plan that is fast enough.
std::vector<size_t> slowest_first(const DerivedStages& derived) {
  std::vector<double> us(derived.stages.size(), 0);
  for (size_t stage = 0; stage < us.size(); ++stage) {
    const PlanDraft& draft = derived.stages[stage].draft;
    for (const Graph& function : draft.program.functions)
      for (NodeId id : instructions_of(function)) {
        const Node& node = function.node(id);
        if (node.op->engine == Engine::Compute)
          us[stage] += predicted_us(function, node, chosen_kernel(function, node, *draft.catalog), draft.device);
      }
  }
  std::vector<size_t> order(us.size());
  std::iota(order.begin(), order.end(), 0);
  llvm::stable_sort(order, [&](size_t a, size_t b) { return us[a] > us[b]; });
  return order;
}

// Plans of the stage are compared by the step they make with those of the other stages.
void compare_by_step(FitOptions& options, const StepOfStages& step, size_t stage) {
  options.us_of_step = [&step, stage](const Plan& plan) { return step.us_with(stage, plan); };
  options.fast_enough_us = step.fast_enough_us();
}

// What came of a search in which a stage has no plan: nothing, or the errors of the stages ahead of it. Those behind it
// may have been given up, so that they must not count.
Result<std::vector<Plan>> refused_or_none(StagePlans& fitted, llvm::ArrayRef<size_t> ahead) {
  Status failed = Status::success();
  for (size_t stage : ahead)
    if (!*fitted[stage]) failed = llvm::joinErrors(std::move(failed), fitted[stage]->takeError());
  for (std::optional<Result<std::optional<Plan>>>& other : fitted)
    if (!*other) llvm::consumeError(other->takeError());
  if (failed) return failed;
  return std::vector<Plan>();
}

// Of stages that fit as they are, where one of them is above what the request says, quick layouts will do.
Layouts layouts_for(const TrainingRequest& request, llvm::ArrayRef<StageFit*> fits) {
  const auto is_above = [&](StageFit* fit) { return fit->plain->min_bytes() > request.quick_above_bytes; };
  const auto fits_quickly = [&](StageFit* fit) { return fit->first_plain().promised_bytes() <= fit->budget_bytes(); };
  return request.quick_above_bytes > 0 && llvm::any_of(fits, is_above) && llvm::all_of(fits, fits_quickly)
             ? Layouts::Quick
             : Layouts::Searched;
}

// The plans of all stages as they were cut, each within its budget or the one that needs least. Empty where a stage has
// none: then the others are not searched any further.
Result<std::vector<Plan>> fit_stages(DerivedStages& derived, const ForwardModel& forward,
                                     const TrainingRequest& request, const StageDevices& devices) {
  StagePlans fitted(derived.stages.size());
  std::vector<const Program*> programs;
  for (const Derived& stage : derived.stages) programs.push_back(&stage.draft.program);
  const int64_t snapshot_bytes = held_for_snapshot(request, programs);
  std::vector<int64_t> host_bytes;
  for (size_t i = 0; i < fitted.size(); ++i)
    host_bytes.push_back(budget_of_host_arena(request, *programs[i], devices.device(i), snapshot_bytes));
  const auto prepare = [&](size_t i, int64_t bytes) {
    return prepare_fit(derived.stages[i].draft, i, forward, request, devices.device(i), bytes);
  };
  std::vector<std::optional<Result<std::unique_ptr<StageFit>>>> prepared(fitted.size());
  parallel_for(fitted.size(), [&](size_t i) { prepared[i].emplace(prepare(i, host_bytes[i])); });
  Status failed = Status::success();
  for (std::optional<Result<std::unique_ptr<StageFit>>>& each : prepared)
    if (!*each) failed = llvm::joinErrors(std::move(failed), each->takeError());
  if (failed) return failed;
  std::vector<StageFit*> fits;
  std::vector<const Plan*> plain;
  for (std::optional<Result<std::unique_ptr<StageFit>>>& each : prepared) {
    fits.push_back((*each)->get());
    plain.push_back(&fits.back()->first_plain());
  }
  const Layouts layouts = layouts_for(request, fits);

  const std::vector<size_t> order = slowest_first(derived);
  StepOfStages step(std::move(plain), order, request.enough_us);
  std::atomic<size_t> without_plan = order.size();  // the first place in the order whose stage has none
  const auto fit_at = [&](size_t place) {
    const size_t i = order[place];
    const auto is_given_up = [&, place] { return without_plan < place || step.is_too_slow(); };
    if (is_given_up()) return void(fitted[i].emplace(std::optional<Plan>()));
    FitOptions& options = fits[i]->options;
    options.is_given_up = is_given_up;
    compare_by_step(options, step, i);
    if (place > 0 && !fits[i]->plain->is_within(fits[i]->budget_bytes())) options.hidden_us = step.hidden_us_of(i);
    fitted[i].emplace(fit_stage(derived.stages[i], *fits[i], layouts, step.enough_us_of(i)));
    if (!*fitted[i]) return;
    if (**fitted[i]) return step.add(i, ***fitted[i]);
    for (size_t first = without_plan; place < first && !without_plan.compare_exchange_weak(first, place);) {
    }
  };
  fit_at(0);
  parallel_for(order.size() - 1, [&](size_t i) { fit_at(i + 1); });
  if (without_plan < order.size() || step.is_too_slow())
    return refused_or_none(fitted, llvm::ArrayRef(order).take_front(without_plan));
  const auto fit_again = [&](size_t i, int64_t bytes) -> Result<std::optional<Plan>> {
    Result<std::unique_ptr<StageFit>> again = prepare(i, bytes);
    if (!again) return again.takeError();
    compare_by_step((*again)->options, step, i);
    return fit_stage(derived.stages[i], **again, Layouts::Searched, request.enough_us);
  };
  fit_with_more_of_hosts(fitted, host_bytes, request, step, fit_again);
  std::vector<Plan> plans;
  for (std::optional<Result<std::optional<Plan>>>& result : fitted) {
    if (!*result) {
      failed = llvm::joinErrors(std::move(failed), result->takeError());
      continue;
    }
    std::optional<Plan>& plan = **result;
    if (!plan) continue;
    plan->mesh = request.mesh;
    plan->pipeline = derived.pipeline;
    plan->stage = static_cast<int32_t>(plans.size());
    plans.push_back(std::move(*plan));
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

// What the plan of a stage that does not fit says about its runs of blocks, and about the tables.
void learn(const DerivedStages& derived, const StageRuns& runs, size_t stage, const Plan& plan,
           llvm::MutableArrayRef<StageFindings> findings) {
  const std::vector<StageCut>& cuts = derived.cuts;
  int64_t unforeseen = lacks_bytes(plan);
  for (size_t run = 0; run < cuts.size(); ++run)
    if (static_cast<size_t>(runs.stage_of(static_cast<int64_t>(run))) == stage) unforeseen -= cuts[run].lacks_bytes;
  for (size_t run = 0; run < cuts.size(); ++run) {
    if (static_cast<size_t>(runs.stage_of(static_cast<int64_t>(run))) != stage) continue;
    findings[run].unforeseen_bytes += unforeseen / runs.per_stage;
    // Of several runs that are too large together, each may fit beside others.
    const size_t end = run + 1 < cuts.size() ? cuts[run + 1].first : derived.blocks;
    if (runs.per_stage == 1) findings[run].too_large.emplace_back(cuts[run].first, end);
  }
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

// Cuts the model again where a stage needs more or less than the tables had it need. Empty where a stage has no plan
// that is faster than is asked for.
Result<std::vector<Plan>> cut_and_fit(const StageRuns& runs, const ForwardModel& forward,
                                      const TrainingRequest& request, const StageDevices& devices,
                                      const PassManager& passes) {
  std::vector<StageFindings> findings(static_cast<size_t>(runs.count()));
  std::vector<Plan> best;
  for (int i = 0; i < max_cuts; ++i) {
    Result<DerivedStages> derived =
        derive_stages(forward, request, runs, devices, i == 0 ? passes : passes.quiet(), findings);
    if (!derived) return derived.takeError();
    if (!best.empty() && !are_worth_trying(derived->cuts, best)) break;
    Result<std::vector<Plan>> plans = fit_stages(*derived, forward, request, devices);
    if (!plans) return plans;
    if (plans->empty()) return plans;
    if (all_fit(*plans)) return plans;
    for (size_t stage = 0; stage < plans->size(); ++stage)
      if (!is_within_budget((*plans)[stage])) learn(*derived, runs, stage, (*plans)[stage], findings);
    if (best.empty() || lacks_bytes(that_lacks_most(*plans)) < lacks_bytes(that_lacks_most(best)))
      best = std::move(*plans);
  }
  return best;
}

// All stages in the order of one schedule.
Result<CompileResult> plan_schedule(const StageRuns& runs, const ForwardModel& forward, const TrainingRequest& request,
                                    const StageDevices& devices, const PassManager& passes) {
  Result<std::vector<Plan>> plans = cut_and_fit(runs, forward, request, devices, passes);
  if (!plans) return plans.takeError();
  if (plans->empty()) return none_is_faster();
  CompileResult result;
  result.host_budget_bytes = request.host_budget_of_rank();
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
  if (a.is_too_slow || b.is_too_slow) return b.is_too_slow && !a.is_too_slow;
  return a.fits ? a.plan.predicted_step_us < b.plan.predicted_step_us : lacks_bytes(a.plan) < lacks_bytes(b.plan);
}

// Schedules with several runs per stage are planned where the slowest stage waits for more of a step than this:
// planning one takes as long as all stages do.
constexpr double min_waiting_share = 0.02;

// Plans one schedule after the other and keeps the best.
class ScheduleSearch {
 public:
  ScheduleSearch(const ForwardModel& forward, const TrainingRequest& request, const StageDevices& devices)
      : forward_(forward), request_(request), devices_(devices) {}

  Result<CompileResult> run() {
    for (size_t i = 0; i < std::size(schedule_names); ++i) {
      const auto schedule = static_cast<PipelineSchedule>(i);
      if (request_.schedule.value_or(schedule) != schedule) continue;
      if (Status s = plan_all_runs(schedule)) return s;
    }
    if (best_->is_too_slow) return std::move(*best_);
    best_->plan.decisions.push_back({"schedule-stages", "plan", best_->plan.pipeline.schedule, tried_});
    return std::move(*best_);
  }

 private:
  // Interleaved stages have as many runs as asked for, or twice as many as before while that is better.
  Status plan_all_runs(PipelineSchedule schedule) {
    StageRuns runs = runs_of_schedule(schedule, request_.mesh[MeshAxis::Stage], request_.runs_per_stage);
    for (bool more = true; more; runs.per_stage *= 2) {
      if (Status s = plan_runs(runs)) return s;
      more = schedule == PipelineSchedule::Interleaved && request_.runs_per_stage == 0 && is_best(runs);
    }
    return Status::success();
  }

  bool is_best(const StageRuns& runs) const {
    return !best_->is_too_slow && best_->plan.pipeline.schedule == name_of(runs);
  }

  // A schedule that the model or the batch does not allow is an error where no other is planned.
  Status plan_runs(const StageRuns& runs) {
    if (!tried_.empty()) tried_ += "; ";
    tried_ += name_of(runs) + " ";
    if (const double share = least_waiting_share(); share < min_waiting_share && runs.per_stage > 1) {
      tried_ += "is not planned: the slowest stage waits for " + format_share(share) + " of a step";
      return Status::success();
    }
    Result<CompileResult> result =
        plan_schedule(runs, forward_, request_, devices_, best_ ? forward_.passes.quiet() : forward_.passes);
    if (!result) {
      if (!best_) return result.takeError();
      const Diag refusal = take_diag(result.takeError());
      if (refusal.fault() != Fault::Usage) return llvm::make_error<Diag>(refusal);
      tried_ += "is not planned: " + refusal.text();
      return Status::success();
    }
    tried_ += outcome_of(*result);
    if (!best_ || is_better_result(*result, *best_)) best_ = std::move(*result);
    return Status::success();
  }

  // Of the best plan so far, the most that another schedule can save: the slowest stage's waiting for stages and for
  // transfers.
  double least_waiting_share() const {
    if (!best_ || !best_->fits) return 1;
    double share = 1;
    for (const TimeSummary& stage : summarize_stages(best_->plan))
      share = std::min(share, (stage.awaited_us + stage.exposed_us) / best_->plan.predicted_step_us);
    return share;
  }

  // "takes 3.1 ms, in which stages wait for up to 12 %, and needs up to 1.2 GiB"
  static std::string outcome_of(const CompileResult& result) {
    if (result.is_too_slow) return "takes longer than another mesh";
    if (!result.fits) return shortfall(result);
    const double step_us = result.plan.predicted_step_us;
    double awaited_us = 0;
    int64_t bytes = 0;
    for (const TimeSummary& stage : summarize_stages(result.plan)) awaited_us = std::max(awaited_us, stage.awaited_us);
    for (const Plan* stage : result.plan.stages()) bytes = std::max(bytes, stage->promised_bytes());
    return "takes " + format_us(step_us) + ", in which a stage waits for up to " + format_share(awaited_us / step_us) +
           ", and needs up to " + format_bytes(bytes);
  }

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const StageDevices& devices_;
  std::optional<CompileResult> best_;
  std::string tried_;
};

}  // namespace

bool is_long_for_many(int64_t instructions) { return instructions > max_instructions_of_many; }

bool may_fit_as_one_of_many(const Plan& plain, int64_t budget_bytes) {
  return !is_long_plan(plain) || may_fit({.min_share = long_min_share}, PlainPlan(plain), budget_bytes);
}

Result<CompileResult> search_stages(const ForwardModel& forward, const TrainingRequest& request,
                                    const StageDevices& devices, const CompileHooks& hooks) {
  if (Status s = refuse_what_is_not_planned(request)) return s;
  if (hooks.on_phase) hooks.on_phase("lay out");
  return ScheduleSearch(forward, request, devices).run();
}

}  // namespace plimsoll
