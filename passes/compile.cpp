#include "passes/compile.h"

#include "ir/plan/check.h"
#include "ir/plan/snapshot_bytes.h"
#include "ir/plan/summary.h"
#include "ir/support/did_you_mean.h"
#include "passes/add_evaluation.h"
#include "passes/budget/split_search.h"
#include "passes/budget/stage_search.h"
#include "passes/derive_program.h"
#include "passes/derive_stages.h"
#include "passes/fuse_launches.h"
#include "passes/pipelines.h"
#include "passes/target/precision_rules.h"
#include "passes/train/training_step.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

constexpr int max_fixpoint_rounds =
    16;  // exports settle in five; the bound only guards against rules that undo each other

namespace {

// cuBLASLt has products of codes with a scale for each row or block on one generation of cards.
Status check_f8_scales(const TrainingRequest& request, const DeviceDescription& device) {
  constexpr int with_many_scales = 90;
  Result<std::vector<PrecisionRule>> rules = parse_precision_rules(request.precision_rules);
  if (!rules) return rules.takeError();
  const F8Scales scales = f8_scales(*rules);
  if (scales == F8Scales::Tensor || device.backend != "cuda" || device.compute_capability == with_many_scales)
    return Status::success();
  return usage_error("scales = " + f8_scales_name(scales) + ": such products run on cards of compute capability 9.0, " +
                     device.name + " has " + llvm::Twine(device.compute_capability / 10) + "." +
                     llvm::Twine(device.compute_capability % 10) + "; scales = tensor works there");
}

Status check_precision_on(const TrainingRequest& request, const StageDevices& devices) {
  if (Status s = check_devices(request, devices)) return s;
  for (int64_t stage = 0; stage < request.mesh[MeshAxis::Stage] && request.precision == "fp8"; ++stage)
    if (Status s = check_f8_scales(request, devices.device(static_cast<size_t>(stage)))) return s;
  return Status::success();
}

Status check_stop(llvm::StringRef name) {
  std::vector<llvm::StringRef> known{"clean", "train", "fit"};
  for (const PassInfo* pass : all_passes()) known.push_back(pass->name);
  if (llvm::is_contained(known, name)) return Status::success();
  std::vector<std::string> near = did_you_mean(name, known, 1);
  return usage_error("cannot stop after " + name + ": no pass or phase is called that" +
                     (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

// The functions of all stages as those of one program, to be read.
Result<Derived> derive_all_stages(const ForwardModel& forward, const TrainingRequest& request,
                                  const StageDevices& devices) {
  const StageRuns runs = runs_of_schedule(request.schedule.value_or(PipelineSchedule::OneForwardOneBackward),
                                          request.mesh[MeshAxis::Stage], request.runs_per_stage);
  Result<DerivedStages> derived = derive_stages(forward, request, runs, devices, forward.passes);
  if (!derived) return derived.takeError();
  Derived all = std::move(derived->stages.front());
  for (size_t stage = 1; stage < derived->stages.size(); ++stage) {
    PlanDraft& draft = derived->stages[stage].draft;
    std::move(draft.program.functions.begin(), draft.program.functions.end(),
              std::back_inserter(all.draft.program.functions));
    std::move(draft.functions.begin(), draft.functions.end(), std::back_inserter(all.draft.functions));
  }
  return all;
}

// Loading and the cache may need more of a host's budget than there is, whatever the search finds.
void record_host(CompileResult& result, const TrainingRequest& request) {
  HostSummary host;
  host.budget_bytes = request.host_budget_of_host(), host.cache_bytes = request.cache_bytes;
  host.memory_bytes = request.host_memory_bytes, host.ranks_per_host = request.ranks_per_host;
  for (Plan* plan : result.plans()) {
    plan->host = host;
    for (Plan& stage : plan->later_stages) stage.host = host;
    if (request.checkpoints && plan->stage == 0) plan->host.snapshot_bytes = snapshot_bytes(*plan);
  }
  if (host.budget_bytes > 0 && most_on_a_host(result.plan) > host.budget_bytes) result.fits = false;
}

// Without remats, chunks and host memory.
bool keeps_everything(const Plan& plan) {
  return llvm::all_of(plan.stages(), [](const Plan* stage) {
    return stage->fit.rematerialised == 0 && stage->fit.chunks == 1 && stage->arenas.size() == 1;
  });
}

// Searches compare plans as they are before, in which a gelu can be made again without its product. Where they chose
// anything, how many gelus are fused follows from the layout, and more budget might give a slower plan.
bool fuse_launches(CompileResult& result, const StageDevices& devices) {
  bool any = false;
  for (Plan* plan : result.plans()) {
    if (!keeps_everything(*plan)) continue;
    bool is_changed = fuse_launches(*plan, devices.catalog(static_cast<size_t>(plan->stage)));
    for (Plan& stage : plan->later_stages)
      is_changed |= fuse_launches(stage, devices.catalog(static_cast<size_t>(stage.stage)));
    if (!is_changed) continue;
    plan->predicted_step_us = predict_step_us(*plan);
    for (Plan& stage : plan->later_stages) stage.predicted_step_us = plan->predicted_step_us;
    any = true;
  }
  return any;
}

// A plan that does not fit is an answer to read and not one to run.
Status check_plans(const CompileResult& result) {
  if (result.fits)
    if (Status s = check_plan(result.plan)) return s;
  for (const Plan& smaller : result.frontier)
    if (Status s = check_plan(smaller)) return s;
  return Status::success();
}

}  // namespace

Status clean_graph(Graph& graph, PassManager& passes) {
  Result<bool> changed = passes.run(graph, clean_pipeline);
  for (int round = 0; round < max_fixpoint_rounds && changed && *changed; ++round)
    changed = passes.run(graph, fixpoint_pipeline);
  if (changed) changed = passes.run(graph, finish_pipeline);
  return changed ? Status::success() : changed.takeError();
}

Status add_adapters(Graph& graph, const AdapterRequest& adapters, PassManager& passes) {
  if (!adapters.wanted()) return Status::success();
  return passes.run(graph, adapter_pipeline(adapters)).takeError();
}

Status quantize_weights(Graph& graph, const TrainingRequest& request, PassManager& passes) {
  const std::string pipeline = quantize_pipeline(request);
  return pipeline.empty() ? Status::success() : passes.run(graph, pipeline).takeError();
}

Result<CleanModel> clean_model(Graph forward, llvm::StringRef loss, const CompileHooks& hooks,
                               const EvaluationRequest& evaluation) {
  CleanModel model{std::move(forward), PassManager(hooks)};
  model.passes.enter("clean");
  if (evaluation.wanted) {
    Result<Graph> graph = make_evaluation_graph(model.graph, loss, evaluation, model.passes.quiet());
    if (!graph) return graph.takeError();
    model.evaluation = std::move(*graph);
  }
  if (Status s = attach_loss(model.graph, loss)) return s;
  if (Status s = clean_graph(model.graph, model.passes)) return s;
  return model;
}

Result<PlanDraft> compile_until(Graph forward, const TrainingRequest& request, const StageDevices& devices,
                                const CompileHooks& hooks) {
  if (Status s = check_stop(hooks.pipeline.stop_after)) return s;
  if (Status s = check_precision_on(request, devices)) return s;
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, hooks);
  if (!model) return model.takeError();
  Result<ForwardModel> prepared = prepare_forward(std::move(*model), request, devices.preferences());
  if (!prepared) return prepared.takeError();
  const DeviceDescription& device = devices.device(0);
  const KernelCatalog& catalog = devices.catalog(0);
  if (prepared->passes.stopped()) return PlanDraft(Program{{std::move(prepared->graph)}}, device, catalog);
  Result<Derived> derived = request.mesh[MeshAxis::Stage] > 1
                                ? derive_all_stages(*prepared, request, devices)
                                : derive_program(*prepared, {}, request, device, catalog, prepared->passes);
  if (!derived) return derived.takeError();
  if (derived->passes.stopped()) return std::move(derived->draft);
  if (Result<bool> placed = run_steps(derived->passes, derived->draft, place_pipeline); !placed)
    return placed.takeError();
  if (derived->passes.stopped()) return std::move(derived->draft);
  return usage_error("cannot stop after " + hooks.pipeline.stop_after + ": the pass is not run");
}

Result<CompileResult> compile_training(Graph forward, const TrainingRequest& request, const DeviceDescription& device,
                                       const KernelCatalog& catalog, const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, whole, request.evaluation);
  if (!model) return model.takeError();
  return compile_training(std::move(*model), request, StageDevices(device, catalog), whole);
}

Result<CompileResult> compile_training(CleanModel model, const TrainingRequest& request, const StageDevices& devices,
                                       const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  if (Status s = check_precision_on(request, devices)) return s;
  model.passes = model.passes.under(whole);
  std::optional<ForwardModel> prepared;
  if (!request.prepared) {
    Result<ForwardModel> forward = prepare_forward({model.graph, model.passes}, request, devices.preferences());
    if (!forward) return forward.takeError();
    prepared = std::move(*forward);
  }
  const ForwardModel& forward = request.prepared ? request.prepared->forward : *prepared;
  const auto search = [&](const StageDevices& on) {
    return request.mesh[MeshAxis::Stage] > 1 ? search_stages(forward, request, on, whole)
                                             : search_splits(forward, request, on.device(0), on.catalog(0), whole);
  };
  Result<CompileResult> result = search(devices);
  if (!result) return result.takeError();
  if (model.evaluation) {
    EvaluationPlanner planner(model, request, devices);
    result = add_evaluation(std::move(*result), planner,
                            [&](const Reserve& held_back) { return search(devices.with_reserve(held_back)); });
    if (!result) return result.takeError();
  }
  record_host(*result, request);
  // What ranks have of a value is followed through each of two ops, and no further than into one of both.
  if (Status s = check_plans(*result)) return s;
  if (fuse_launches(*result, devices))
    if (Status s = check_plans(*result)) return s;
  return result;
}

}  // namespace plimsoll
