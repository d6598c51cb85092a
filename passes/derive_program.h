#pragma once

// From the clean forward graph of a model to the scheduled functions of its training job.

#include "ir/machine/kernel_catalog.h"
#include "passes/job.h"
#include "passes/pass/pass_manager.h"

namespace plimsoll {

// A forward graph with its loss behind the clean stage: what plans of a model start from, whatever the device, batch
// and precision.
struct CleanModel {
  Graph graph;
  PassManager passes;  // goes on with the plan's passes
};

// The forward graph as it is differentiated: in the job's batch, layout and precision, its trained states marked.
struct ForwardModel {
  Graph graph;
  TrainingSummary summary;
  PassManager passes;
};
Result<ForwardModel> prepare_forward(CleanModel model, const TrainingRequest& request, const KernelCatalog& catalog);

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
  PassManager passes;  // with all decisions so far
};
Result<Derived> derive_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request,
                               const KernelCatalog& catalog, PassManager passes);

}  // namespace plimsoll
