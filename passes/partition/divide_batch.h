#pragma once

// Data parallelism: each rank along the data axis takes its rows of the batch.

#include "ir/graph.h"

namespace plimsoll {

// Outputs of a divided forward graph besides its loss, which is the whole batch's: the rank's own summand of the loss,
// where gradients start, and what the samples of the whole batch weigh, where the loss is their weighted mean.
inline constexpr llvm::StringLiteral objective_output = "objective", sample_weight_output = "sample_weight";

// `graph` is a forward graph of the whole batch, its only output the loss. Turns it into that of one of `ranks` ranks
// which together compute the same: inputs become the rank's rows, and so does all that is made of them row by row; what
// mixes rows reads sums over the ranks, or, where its op has no such form, the gathered rows of all. Randomly drawn
// numbers stay those of the whole batch. Errors name the input whose rows do not divide.
Status divide_batch(Graph& graph, int64_t ranks);

}  // namespace plimsoll
