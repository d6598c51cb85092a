#pragma once

// Which states ranks divide along the data axis, how long their pieces are, and the attributes of collectives over
// them.

#include "ir/division.h"

namespace plimsoll {

// The shape of a rank's piece of a state: flat, as long for every rank, zeros behind the end of the whole. Empty where
// the state is so small that every rank keeps all of it.
Shape piece_shape(llvm::ArrayRef<int64_t> whole, int64_t ranks);

// As collective_attrs.
Attrs data_group(int64_t ranks, llvm::ArrayRef<int64_t> shape = {});

}  // namespace plimsoll
