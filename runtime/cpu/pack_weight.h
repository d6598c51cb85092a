#pragma once

#include "runtime/packed_weights.h"

namespace plimsoll {

// Numbers that can be packed without the others: a block, where it ends with a byte, and of a weight that is turned
// whole rows.
int64_t smallest_piece(const PackedWeight& weight);

// Codes and scales of `count` numbers, which are those of the weight from `first` on: whole pieces, or its end. `codes`
// and `scales` are all of the weight's.
void pack_piece(const PackedWeight& weight, const float* x, int64_t first, int64_t count, uint8_t* codes,
                float* scales);

// The scales of a weight whose scales are codes, of those in f32.
void pack_scales(const PackedWeight& weight, const Tensor& scales, Packed& packed);

// to [rows, columns] = the transpose of from [columns, all_rows], of its columns from `first` on.
void turn_rows(float* to, const float* from, int64_t rows, int64_t columns, int64_t all_rows, int64_t first);

}  // namespace plimsoll
