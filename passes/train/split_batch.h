#pragma once

// Splits a region of a forward graph along the batch, so that a training step can take one part through forward and
// backward before it starts on the next: of what the region makes, one part is alive at a time.

#include "ir/graph.h"

namespace plimsoll {

struct BatchSplit {
  int64_t parts = 0;
  std::vector<int32_t> turn;  // by node of the graph: the turn in which the part's nodes run, from 0; -1: no part's
  ValueId sample_weight =
      ValueId::None;  // what the loss was divided by, where the split took that division out of its node
};

// `graph` is a forward graph with its trained states marked. Makes `parts` of all that depends on `from` and whose ops
// work row by row; what they leave is put together again: rows by concat, sums by add. A mean loss becomes sums over
// what the whole batch weighs. Errors when `from` does not divide, or nothing that reads it does.
Result<BatchSplit> split_batch(Graph& graph, ValueId from, int64_t parts);

// Reorders a training step derived from a graph that was split: what belongs to one part, forward and backward, runs
// before the next part. Sums over parts then run in the order they were derived in.
void run_parts_in_turn(Graph& step, const BatchSplit& split);

}  // namespace plimsoll
