#pragma once

// What a stage of a pipeline holds while it computes a block of the model, for the tables of stage_cuts.h.

#include "passes/analysis/plan_draft.h"
#include "passes/partition/stage_cuts.h"

namespace plimsoll {

// Fills in the bytes of `block`, those of states included, and its remats, whose times `node_us` gives. `step` is the
// block's scheduled program as a stage of its own that takes the whole batch at once. What depends on the batch is
// scaled down to one of `micro_batches`; gradients are as large as they are, and so is what the stage receives that has
// the type of one of `parameters`. A remat makes one kept value again from what is left, and each instruction once for
// all values that need it.
void measure_memory(StageBlock& block, PlanDraft& step, int64_t micro_batches, llvm::ArrayRef<Type> parameters,
                    llvm::function_ref<double(const Graph&, const Node&)> node_us);

}  // namespace plimsoll
