#pragma once

// From the clean forward graph of a model to the scheduled functions of its training job.

#include "passes/compile.h"

namespace plimsoll {

// The forward graph as it is differentiated: in the job's batch, layout and precision, its trained states marked.
struct ForwardModel {
  Graph graph;
  TrainingSummary summary;
  std::vector<Decision> decisions;  // so far
  size_t passes_run = 0;            // where dumps go on counting
  bool stopped = false;             // at hooks.pipeline.stop_after
};
Result<ForwardModel> prepare_forward(CleanModel model, const TrainingRequest& request, const KernelCatalog& catalog,
                                     const CompileHooks& hooks);

// What follows a value, in so many parts of the batch; 1: whole.
struct SplitChoice {
  ValueId from = ValueId::None;
  int64_t parts = 1;
};

// A program on its way to a plan. By function: the writers of its states, as make_updates_writable gave them, and
// another order of its nodes.
struct Derived {
  Program program;
  std::vector<std::vector<NodeId>> writers, other_orders;
  std::vector<Decision> decisions;  // since the forward graph
  bool stopped = false;
};
Result<Derived> derive_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request,
                               const KernelCatalog& catalog, const CompileHooks& hooks);

}  // namespace plimsoll
