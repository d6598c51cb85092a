#pragma once

// Data parallelism: each rank along the data axis takes its rows of the batch.

#include "ir/graph.h"
#include "ir/op_def.h"

namespace plimsoll {

// Outputs of a divided forward graph besides its loss, which is the whole batch's: the rank's own summand of the loss,
// where gradients start, and what the samples of the whole batch weigh, where the loss is their weighted mean.
inline constexpr llvm::StringLiteral objective_output = "objective", sample_weight_output = "sample_weight";

// The inputs that carry the samples of the batch.
struct BatchInputs {
  int64_t samples = 0;  // the leading dimension that all of them share; 0 where they share none
  std::vector<ValueId> inputs;
};

// Tells them from those that all samples share, such as position ids [1, T], a mask [T, T] or a scalar. `graph` is a
// forward graph, its first output the loss. An input with a leading dimension of 1 is shared where another has more
// rows, and so is one whose rows are never read beside another input's and reach no sum over the batch. The error names
// inputs between which the graph does not decide.
Result<BatchInputs> find_batch(const Graph& graph);

// Of these inputs, whose rows divide by `ranks`, those whose rows such ranks would use as rows.
std::vector<ValueId> inputs_used_as_rows(const Graph& graph, int64_t ranks, llvm::ArrayRef<ValueId> inputs);

// Rows of each rank that shares the batch: those of the last ones may end behind it.
constexpr int64_t rows_of_rank(int64_t samples, int64_t ranks) { return (samples + ranks - 1) / ranks; }

// `graph` is a forward graph of the whole batch, its only output the loss. Turns it into that of one of `ranks` ranks
// which together compute the same: inputs of the batch become the rank's rows, others stay whole, and so does all that
// is made of them row by row; what mixes rows reads sums over the ranks, or, where its op has no such form, the
// gathered rows of all. Randomly drawn numbers stay those of the whole batch. Where rows do not divide evenly, ranks
// have equally many, and what the last ones have behind the end of the batch counts nothing.
Status divide_batch(Graph& graph, int64_t ranks, Statistics statistics = Statistics::OfAllRanks);

}  // namespace plimsoll
