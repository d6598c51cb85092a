#pragma once

// Pipelines: each stage of the mesh takes a run of the model's layers. The graph stays one, in which values go from
// stage to stage by `transfer`; passes/partition/project_stages.h makes a graph for each stage once it is
// differentiated.

#include "ir/graph.h"

namespace plimsoll {

// `graph` is a forward graph with its trained states marked; `ends` are the last nodes of all stages but the last, in
// graph order. What depends on the batch, and on a trained state or on a matmul, is computed by the stage in whose run
// it stands, and transferred where another stage reads it. What is cheaper is left for each stage to compute itself. A
// trained state belongs to the first stage that reads it, the others get it by transfer; the gradients come back the
// same way. Gives the number of transfers.
int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends);

}  // namespace plimsoll
