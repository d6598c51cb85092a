#pragma once

// ZeRO-3: ranks along the data axis divide the parameters too.

#include "ir/graph.h"

namespace plimsoll {

// Each of `ranks` ranks keeps its piece of every parameter that is worth it, and gathers the whole ahead of its first
// reader. Gradients are added up over the ranks in `sum_dtype`. `chunk` is by node the chunk of the batch in which it
// runs, or empty: each chunk gathers by itself, so that gradients of chunks are added up in pieces. Returns how many
// parameters were divided.
int64_t divide_parameters(Graph& graph, int64_t ranks, DType sum_dtype, llvm::ArrayRef<int32_t> chunk = {});

}  // namespace plimsoll
