#pragma once

// Exact search for a packing below a given capacity, for pieces of up to some
// two thousand buffers.

#include "passes/place/placement_problem.h"

namespace plimsoll::placement {

// Lowers `best`, which must hold a packing, towards `target` while effort lasts.
void search_exactly(const Piece& piece, int64_t target, Effort& effort, Packing& best);

}  // namespace plimsoll::placement
