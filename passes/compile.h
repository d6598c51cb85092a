#pragma once

// The whole way from a forward graph to a checked plan.

#include "ir/machine/stage_devices.h"
#include "passes/derive_program.h"

namespace plimsoll {

// Runs the clean stage on `graph`.
Status clean_graph(Graph& graph, PassManager& passes);

Result<CleanModel> clean_model(Graph forward, llvm::StringRef loss, const CompileHooks& hooks = {},
                               const EvaluationRequest& evaluation = {});

// Adds the adapters of a request to a clean forward graph, and quantises its frozen weights as one asks. Neither
// changes anything where nothing is asked for.
Status add_adapters(Graph& graph, const AdapterRequest& adapters, PassManager& passes);
Status quantize_weights(Graph& graph, const TrainingRequest& request, PassManager& passes);

// The graphs as they stand after the pass (the first time it runs) or the phase (clean, train, fit) that
// hooks.pipeline.stop_after names: the forward graph until the phase train, then the functions of the program.
Result<PlanDraft> compile_until(Graph forward, const TrainingRequest& request, const StageDevices& devices,
                                const CompileHooks& hooks);

// Errors: Fault::Model where the graph cannot be trained as asked. Plans that fit have passed the independent checker.
// hooks.pipeline.stop_after plays no part.
Result<CompileResult> compile_training(CleanModel model, const TrainingRequest& request, const StageDevices& devices,
                                       const CompileHooks& hooks = {});
Result<CompileResult> compile_training(Graph forward, const TrainingRequest& request, const DeviceDescription& device,
                                       const KernelCatalog& catalog, const CompileHooks& hooks = {});

}  // namespace plimsoll
