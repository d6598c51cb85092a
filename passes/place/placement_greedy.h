#pragma once

// Placement by order: buffers go in one after another, each into the first or
// the tightest hole. The two functions differ only in where their orders come from.

#include "passes/place/placement_problem.h"

namespace plimsoll::placement {

// Ten static orders; keeps the lowest packing in `best`. At least one is run to its end.
void try_static_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// Repairs the best order: a buffer that ends above the target goes earlier next time.
// `best` must hold a packing.
void promote_high_buffers(const Piece& piece, int64_t target, Effort& effort, Packing& best);

}  // namespace plimsoll::placement
