#pragma once

// Products of one matrix with each of a batch at its right, as a layer over the tokens of each image is.

#include "ir/graph.h"

namespace plimsoll {

// Sizes of such a product that kernels of left_product_size (ir/machine/kernel_catalog.h) take: y[b] = w x[b], of
// 16-bit elements, with rows of x and y that begin at 16-byte borders.
bool fits_left_product(const Type& x, int64_t rows, int64_t depth, int64_t left_size);

// Is the node a matmul of such sizes? Never where left_size is 0.
bool is_left_product(const Graph& graph, const Node& node, int64_t left_size);

}  // namespace plimsoll
