#pragma once

// Which states ranks divide along the data axis, and how long their pieces are.

#include "ir/type.h"

namespace plimsoll {

// The shape of a rank's piece of a state: flat, as long for every rank, zeros behind the end of the whole. Empty where
// the state is so small that every rank keeps all of it.
Shape piece_shape(llvm::ArrayRef<int64_t> whole, int64_t ranks);

}  // namespace plimsoll
