#pragma once

// What the forward graph of a model says of its integer inputs: how many tokens or classes their elements may name, and
// which position the loss compares them with.

#include "ir/graph.h"
#include "ir/index_input.h"

#include <vector>

namespace plimsoll {

// `forward` is clean and has its loss as the first output. Inputs that index nothing are not in the list.
//
// A causal language model predicts the token after each position. Some exporters leave the shift to whoever feeds the
// labels; a Hugging Face model that is exported with its loss shifts labels itself. The shift is found by following the
// positions of the labels through the graph, by evaluation, to the rows of the loss, and by looking for the slice that
// shortens the logits. Of several losses over one input the smallest shift counts, as the one of the next token.
std::vector<IndexInput> find_index_inputs(const Graph& forward);

}  // namespace plimsoll
