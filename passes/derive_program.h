#pragma once

// From the clean forward graph of a model to the scheduled functions of its training job.

#include "ir/machine/kernel_catalog.h"
#include "passes/analysis/plan_draft.h"
#include "passes/job.h"
#include "passes/pass/pass_manager.h"

namespace plimsoll {

// A forward graph with its loss behind the clean stage: what plans of a model start from, whatever the device, batch
// and precision.
struct CleanModel {
  Graph graph;
  PassManager passes;  // goes on with the plan's passes
  // The same model in inference mode with all that evaluation gives, where that was asked for.
  std::optional<Graph> evaluation = std::nullopt;
};

// The forward graph as it is differentiated: in the job's batch, layout and precision, its trained states marked.
struct ForwardModel {
  Graph graph;
  TrainingSummary summary;
  PassManager passes;
};
Result<ForwardModel> prepare_forward(CleanModel model, const TrainingRequest& request,
                                     const KernelPreferences& preferences);
// Its two parts: what comes before ranks divide the graph, and how they do. The graph of the first depends on the mesh
// only in whether ranks divide tensors.
Result<ForwardModel> prepare_undivided(CleanModel model, const TrainingRequest& request,
                                       const KernelPreferences& preferences);
Result<ForwardModel> divide_forward(ForwardModel undivided, const TrainingRequest& request,
                                    const KernelPreferences& preferences);

// Decides, for the reader of the plan, on each trained state that no gradient reaches.
void note_untrained(const Graph& forward, const Program& program, PassManager& passes);

// Into how many chunks the batch is cut for all that follows a value; 1: not at all.
struct SplitChoice {
  ValueId from = ValueId::None;
  int64_t chunks = 1;
};

// The job's program before any pass on its step. The forward part is `forward`, split where that is asked for.
Result<Program> make_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request);

// The scheduled functions of the job, on their way to a plan.
struct Derived {
  PlanDraft draft;
  PassManager passes;  // with all decisions so far
};
// What a step may do that plans without remats, chunks and host memory alone are made of.
struct PlainForm {
  bool keeps_copies = false;  // updates write 16-bit copies of trained parameters, which the next step reads
  // Products write the gelus of their results, and gradients of norms the dropouts of theirs.
  bool joins_launches = false;

  bool is_usual() const { return !keeps_copies && !joins_launches; }
};
// Runs the passes behind differentiation on the program's functions and orders their instructions.
Result<Derived> schedule_program(Program program, const TrainingRequest& request, const DeviceDescription& device,
                                 const KernelCatalog& catalog, PassManager passes, PlainForm form = {});
Result<Derived> derive_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request,
                               const DeviceDescription& device, const KernelCatalog& catalog, PassManager passes,
                               PlainForm form = {});

// A job's program as it is, and the graph that others are derived of.
struct PreparedProgram {
  ForwardModel forward;
  Derived whole;
};

}  // namespace plimsoll
