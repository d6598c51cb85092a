#pragma once

// Attention of 16-bit heads that end within a 16-byte word works on padded ones; part of pad-products.

#include "passes/pass/pass.h"

namespace plimsoll {

// Heads get a multiple of so many elements, but for those of no more than `few_rows` rows and columns. Did any change?
bool pad_heads(Graph& graph, PassContext& context, int64_t multiple, int64_t few_rows);

}  // namespace plimsoll
