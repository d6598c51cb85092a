#pragma once

#include "ir/fold.h"

namespace plimsoll {

// The result of a reshape, transpose, slice or expand of an expanded constant, when the dimensions that
// repeat still repeat as a whole afterwards: then only the base moves. None otherwise, and for every other
// op.
std::optional<ConstantView> move_constant(const Node& node, const ConstantView& view,
                                          llvm::ArrayRef<int64_t> result_shape);

}  // namespace plimsoll
