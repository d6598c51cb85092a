#pragma once

// What a stage of a pipeline holds while it computes a block of the model, for the tables of stage_cuts.h.

#include "passes/analysis/plan_draft.h"
#include "passes/partition/stage_cuts.h"

namespace plimsoll {

struct BlockTrial {
  int64_t micro_batches = 1;        // of a step of the stage
  bool keeps_gradients = false;     // to the end of the step: they are summed, or clipped together
  llvm::ArrayRef<Type> parameters;  // types of all trained states, as ranks have them
};

// Fills in the bytes of `block`, those of states included, and its remats, whose times `node_us` gives. `step` is the
// block's scheduled program as a stage of its own that takes the whole batch at once. What depends on the batch is
// scaled down to one micro-batch; gradients are as large as they are, and so is what the stage receives that has the
// type of a parameter. A remat makes one kept value again from what is left, and each instruction once for all values
// that need it.
void measure_memory(StageBlock& block, PlanDraft& step, const BlockTrial& trial,
                    llvm::function_ref<double(const Graph&, const Node&)> node_us);

}  // namespace plimsoll
