#pragma once

#include <cstdint>

namespace plimsoll::cuda {

// The gradient of attention in one pass takes tiles of so many rows, and heads of up to so many elements.
inline constexpr int one_pass_rows = 64, max_one_pass_depth = 256;

// How many elements a row's sums of dq have, and how many turns a tile of rows, where the wider of a head's two depths
// is this.
constexpr int64_t one_pass_depth(int64_t widest) { return widest <= 64 ? 64 : widest <= 128 ? 128 : 256; }
constexpr int64_t one_pass_turns(int64_t widest) { return widest <= 128 ? 1 : 2; }

}  // namespace plimsoll::cuda
