#pragma once

// Pipelines: each stage of the mesh takes a run of the model's layers, or several. The graph stays one, in which values
// go from run to run by `transfer`; passes/partition/project_stages.h makes a graph for each stage once it is
// differentiated.

#include "ir/graph.h"
#include "passes/partition/pipeline_schedule.h"

namespace plimsoll {

// `graph` is a forward graph with its trained states marked; `ends` are the last nodes of all `runs` but the last, in
// graph order. What depends on the batch, and on a trained state or on a matmul, is computed in the run where it
// stands, and transferred where another run reads it, from a run of the same stage if one has it. What is cheaper is
// left for each stage to compute itself. A trained state belongs to the stage of the first run that reads it, other
// stages get it by transfer; the gradients come back the same way. Gives the number of transfers.
int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends, const StageRuns& runs);
// The same where each run is a stage of its own.
int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends);

}  // namespace plimsoll
