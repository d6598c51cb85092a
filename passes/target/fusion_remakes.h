#pragma once

// An elementwise result of forward that only elementwise ops of backward read is not saved where they can make it of
// what is there anyway: they have its op, and those before it, in their bodies. Where it is a cast to a wider type,
// what was cast is saved if it cannot be made again itself. Where elementwise ops alone read it in forward too, so that
// it would be written for backward, what a product makes, of its size or less, is saved in its place, and operands that
// are small beside it. What a batch norm makes counts as elementwise where backward reads the norm's operand anyway:
// backward then has the norm as arithmetic, with the mean and the variance that forward found.
//
// It is right because an op that is made again gives the same bits. A batch norm's differ by roundings, as where its
// gradient makes the operand of a SiLU again, so that what is compared for equality is saved.

#include "ir/graph.h"

namespace plimsoll {

// Is the value read in backward, itself or as a view?
bool is_read_in_backward(const Graph& graph, ValueId value);

// Do elementwise nodes of its shape alone read it in backward, one at least?
bool only_elementwise_reads_in_backward(const Graph& graph, ValueId value);

// Gives readers in backward the nodes that make such values again. How many values are not saved any more?
int64_t remake_in_backward(Graph& graph);

}  // namespace plimsoll
