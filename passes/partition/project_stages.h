#pragma once

// The graph of each stage of a pipeline, made of the training program of all stages.

#include "ir/graph.h"
#include "passes/partition/pipeline_schedule.h"

namespace plimsoll {

struct PipelineSplit {
  StageRuns runs;
  int64_t micro_batches = 1;
  // By node of the first function: the micro-batch in whose forward or backward it runs; -1: in none.
  std::vector<int32_t> micro_batch_of;
};

// `program` is derived of a forward graph that divide_stages has divided. Each stage gets the nodes that its own
// states, its outputs and its transfers need, in the order of the schedule; transfers to other stages become sends and
// receives, and a sum over tensors of several stages a sum over the stages. All stages have the same outputs, by
// broadcasts from those that make them. States that no batch decides, such as counters, are counted on each stage that
// reads them. `us` predicts a node's time on a stage. Errors name what no stage can compute.
Result<std::vector<Program>> project_stages(const Program& program, const PipelineSplit& split,
                                            llvm::function_ref<double(const Graph&, const Node&, size_t stage)> us);

}  // namespace plimsoll
