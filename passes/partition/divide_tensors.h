#pragma once

// Tensor parallelism: ranks along the tensor axis have parts of matmuls, heads and vocabularies.

#include "passes/partition/tensor_groups.h"
#include "passes/pass/pass_manager.h"

namespace plimsoll {

// `graph` is a forward graph, of one rank along the data axis where that has several. Turns it into that of one of
// `ranks` ranks along the tensor axis which together compute the same; gives what they divide. The values of the
// result name the same values as before. Afterwards there is the output `objective`, the rank's own summand of the
// loss (passes/partition/divide_batch.h), and `sample_weight` where the loss is a weighted mean.
// `made_for`, where it is wanted: by new node, the node of the graph as it was in whose place it was made.
Result<TensorGroups> divide_tensors(Graph& graph, int64_t ranks, Rows rows,
                                    std::map<NodeId, NodeId>* made_for = nullptr, const MayCutFn& may_cut = nullptr);

// What the graph's parameters became, for the reader of the plan.
std::vector<Decision> decisions_on(const Graph& graph, const TensorGroups& groups);

}  // namespace plimsoll
