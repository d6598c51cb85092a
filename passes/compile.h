#pragma once

// The whole way from a forward graph to a checked plan.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"
#include "passes/job.h"
#include "passes/pass/pass_manager.h"

#include <functional>

namespace plimsoll {

// The clean stage as text: what `--skip`, tests and reproducers name. The second part runs until nothing changes.
extern const llvm::StringLiteral clean_pipeline, fixpoint_pipeline, finish_pipeline;

struct CompileHooks {
  PipelineOptions pipeline;                             // dumps, printing, skipped passes
  std::function<void(llvm::StringRef phase)> on_phase;  // called as each phase starts: "clean", "train", ...
  std::function<void(const Plan&)>
      on_frontier;  // sees plans for smaller and smaller budgets, see budget_frontier; unset: not searched for
  std::function<void(const Plan&)> on_refused;  // sees the plan that needs least where nothing fits
};

// Runs the clean stage on `graph` and collects what its passes decided.
Status clean_graph(Graph& graph, const CompileHooks& hooks, std::vector<Decision>& decisions);

// A forward graph with its loss behind the clean stage: what plans of a model start from, whatever the device, batch
// and precision.
struct CleanModel {
  Graph graph;
  std::vector<Decision> decisions;
  size_t passes_run = 0;  // where dumps go on counting
  bool stopped = false;   // at hooks.pipeline.stop_after
};
Result<CleanModel> clean_model(Graph forward, llvm::StringRef loss, const CompileHooks& hooks = {});

// The graphs as they stand after the pass (the first time it runs) or the phase (clean, train, fit) that
// hooks.pipeline.stop_after names: the forward graph until the phase train, then the functions of the program.
Result<Program> compile_until(Graph forward, const TrainingRequest& request, const KernelCatalog& catalog,
                              const CompileHooks& hooks);

// Errors: Fault::Model where the graph cannot be trained as asked, Fault::Budget where it does not fit. The plan has
// passed the independent checker. hooks.pipeline.stop_after plays no part.
Result<Plan> compile_training(CleanModel model, const TrainingRequest& request, const DeviceDescription& device,
                              const KernelCatalog& catalog, const CompileHooks& hooks = {});
Result<Plan> compile_training(Graph forward, const TrainingRequest& request, const DeviceDescription& device,
                              const KernelCatalog& catalog, const CompileHooks& hooks = {});

}  // namespace plimsoll
