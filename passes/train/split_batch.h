#pragma once

// Splits a region of a forward graph along the batch, so that a training step can take one chunk through forward and
// backward before it starts on the next: of what the region makes, one chunk is alive at a time.

#include "ir/graph.h"

namespace plimsoll {

// Values that all of what backward will pass goes through, in graph order: behind one, no other value that has a
// gradient is read.
std::vector<ValueId> find_single_value_cuts(const Graph& graph);

struct BatchSplit {
  int64_t chunks = 0;
  std::vector<int32_t> chunk;  // by node of the graph: the chunk in which the chunk's nodes run, from 0; -1: no chunk's
  ValueId sample_weight =
      ValueId::None;  // what the loss was divided by, where the split took that division out of its node
};

// `graph` is a forward graph with its trained states marked. Makes `chunks` of all that depends on `from` and whose ops
// work row by row; what they leave is put together again: rows by concat, sums by add. A mean loss becomes sums over
// what the whole batch weighs. Errors when `from` does not divide, or nothing that reads it does.
Result<BatchSplit> split_batch(Graph& graph, ValueId from, int64_t chunks);

// Reorders a training step derived from a graph that was split: what belongs to one chunk, forward and backward, runs
// before the next chunk. Sums over chunks then run in the order they were derived in.
void run_chunks_in_order(Graph& step, const BatchSplit& split);

}  // namespace plimsoll
