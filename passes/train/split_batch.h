#pragma once

// Splits a region of a forward graph along the batch, so that a training step can take one chunk through forward and
// backward before it starts on the next: of what the region makes, one chunk is alive at a time.

#include "ir/graph.h"

namespace plimsoll {

struct BatchSplit {
  int64_t chunks = 0;
  std::vector<int32_t> chunk;  // by node of the graph: the chunk in which the chunk's nodes run, from 0; -1: no chunk's
  ValueId sample_weight =
      ValueId::None;  // what the loss was divided by, where the split took that division out of its node
};

// `graph` is a forward graph with its trained states marked. Makes `chunks` of all that depends on the values `from`
// and whose ops work row by row; what they leave is put together again: rows by concat, sums by add. A mean loss
// becomes sums over what the whole batch weighs. Errors when one of `from` does not divide, or nothing that reads the
// first does.
Result<BatchSplit> split_batch(Graph& graph, llvm::ArrayRef<ValueId> from, int64_t chunks);

// By value of a forward graph: would it be made chunk by chunk if the values `from` were split?
std::vector<bool> values_in_chunks(Graph& graph, llvm::ArrayRef<ValueId> from, int64_t chunks);

// By node of a training step derived from a graph that was split: the chunk in which it runs, -1 where it belongs to
// none. Backward that reads several chunks' results runs in the last of them.
std::vector<int32_t> chunks_of_nodes(const Graph& step, const BatchSplit& split);

// Reorders a training step derived from a graph that was split: what belongs to one chunk, forward and backward, runs
// before the next chunk. Sums over chunks then run in the order they were derived in.
void run_chunks_in_order(Graph& step, const BatchSplit& split);

}  // namespace plimsoll
