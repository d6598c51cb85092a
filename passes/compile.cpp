#include "passes/compile.h"

#include "ir/plan/check.h"
#include "ir/support/did_you_mean.h"
#include "passes/budget/split_search.h"
#include "passes/derive_program.h"
#include "passes/pass/pass_runner.h"
#include "passes/train/training_step.h"

namespace plimsoll {

const llvm::StringLiteral clean_pipeline =
    "fold-constants, simplify, cse, dce, recover-activations, recover-norms, recover-losses, "
    "dce, recover-linear, dce, recover-rotary, recover-attention, dce";
const llvm::StringLiteral fixpoint_pipeline = "move-transposes, simplify, dce";
const llvm::StringLiteral finish_pipeline =
    "recover-linear, recover-attention, recover-losses, simplify, recover-split, pack-attention, cse, dce";
constexpr int max_fixpoint_rounds =
    16;  // exports settle in five; the bound only guards against rules that undo each other

namespace {

Status clean(Graph& graph, PassRunner& passes) {
  Result<bool> changed = passes.run(graph, clean_pipeline);
  for (int round = 0; round < max_fixpoint_rounds && changed && *changed; ++round)
    changed = passes.run(graph, fixpoint_pipeline);
  if (changed) changed = passes.run(graph, finish_pipeline);
  return changed ? Status::success() : changed.takeError();
}

Status check_stop(llvm::StringRef name) {
  std::vector<llvm::StringRef> known{"clean", "train", "fit"};
  for (const PassInfo* pass : all_passes()) known.push_back(pass->name);
  if (llvm::is_contained(known, name)) return Status::success();
  std::vector<std::string> near = did_you_mean(name, known, 1);
  return usage_error("--stop-after " + name + ": no pass or phase is called that" +
                     (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

}  // namespace

Status clean_graph(Graph& graph, const CompileHooks& hooks, std::vector<Decision>& decisions) {
  PassRunner passes(hooks, decisions);
  return clean(graph, passes);
}

Result<CleanModel> clean_model(Graph forward, llvm::StringRef loss, const CompileHooks& hooks) {
  enter(hooks, "clean");
  CleanModel model{std::move(forward)};
  PassRunner passes(hooks, model.decisions);
  if (Status s = attach_loss(model.graph, loss)) return s;
  if (Status s = clean(model.graph, passes)) return s;
  model.passes_run = passes.runs() - hooks.pipeline.runs_before;
  model.stopped = passes.stopped();
  return model;
}

Result<Program> compile_until(Graph forward, const TrainingRequest& request, const KernelCatalog& catalog,
                              const CompileHooks& hooks) {
  if (Status s = check_stop(hooks.pipeline.stop_after)) return s;
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, hooks);
  if (!model) return model.takeError();
  Result<ForwardModel> prepared = prepare_forward(std::move(*model), request, catalog, hooks);
  if (!prepared) return prepared.takeError();
  if (prepared->stopped) return Program{{std::move(prepared->graph)}};
  Result<Derived> derived = derive_program(*prepared, {}, request, catalog, hooks);
  if (!derived) return derived.takeError();
  if (!derived->stopped) return usage_error("--stop-after " + hooks.pipeline.stop_after + ": the pass is not run");
  return std::move(derived->program);
}

Result<Plan> compile_training(Graph forward, const TrainingRequest& request, const DeviceDescription& device,
                              const KernelCatalog& catalog, const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, whole);
  return model ? compile_training(std::move(*model), request, device, catalog, whole) : model.takeError();
}

Result<Plan> compile_training(CleanModel model, const TrainingRequest& request, const DeviceDescription& device,
                              const KernelCatalog& catalog, const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  Result<ForwardModel> forward = prepare_forward(std::move(model), request, catalog, whole);
  if (!forward) return forward.takeError();
  Result<Plan> plan = fit_split(*forward, request, device, catalog, whole);
  if (!plan) return plan.takeError();
  plan->decisions.insert(plan->decisions.begin(), forward->decisions.begin(), forward->decisions.end());
  if (Status s = check_plan(*plan)) return s;
  return plan;
}

}  // namespace plimsoll
