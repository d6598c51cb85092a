#pragma once

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// The gradient of attention in one pass takes tiles of so many rows, and heads of up to so many elements.
inline constexpr int one_pass_rows = 64, max_one_pass_depth = 256;

// Tiles are of heads of so many elements, where the wider of a head's two depths is this. With a cap on the scores
// there are none of 32, 80 and 96.
constexpr int64_t one_pass_depth(int64_t widest, bool is_capped) {
  if (widest <= 32 && !is_capped) return 32;
  if (widest <= 64) return 64;
  if (widest <= 96 && !is_capped) return widest <= 80 ? 80 : 96;
  if (widest <= 128) return 128;
  return widest <= 192 ? 192 : 256;
}
// How many turns a tile of rows has.
constexpr int64_t one_pass_turns(int64_t widest) { return widest <= 128 ? 1 : 2; }

// A block owns so many columns.
constexpr int64_t one_pass_columns(int64_t widest) { return widest <= 128 ? 128 : 64; }

// What the blocks of one key head do, in steps: a step is a tile of rows of one of the heads that share it.
struct OnePassSteps {
  int64_t longest = 0, all = 0;  // of a block, and of all
};
// `window` 0: none.
constexpr OnePassSteps one_pass_steps(int64_t rows, int64_t columns, int64_t widest, int64_t shared_by, bool causal,
                                      int64_t window) {
  const int64_t own = one_pass_columns(widest);
  OnePassSteps steps;
  for (int64_t first = 0; first < columns; first += own) {
    int64_t first_row = causal ? first : 0, end_row = rows;
    if (window > 0) {
      first_row = std::max(first_row, first - window + 1);
      end_row = std::min(end_row, first + own - 1 + window);
    }
    const int64_t tiles = (end_row + one_pass_rows - 1) / one_pass_rows - first_row / one_pass_rows;
    steps.longest = std::max(steps.longest, tiles * shared_by);
    steps.all += std::max<int64_t>(tiles, 0) * shared_by;
  }
  return steps;
}

// Into so many parts, each with blocks of its own, the query heads of a key head are divided: as few as let no block
// take much longer than a multiprocessor's share of all steps.
constexpr int64_t one_pass_parts(const OnePassSteps& steps, int64_t key_heads, int64_t shared_by) {
  constexpr int64_t multiprocessors = 132;
  for (int64_t parts = 1; parts < shared_by; ++parts)
    if (shared_by % parts == 0 && 4 * steps.longest * multiprocessors <= 5 * key_heads * steps.all * parts)
      return parts;
  return shared_by;
}

}  // namespace plimsoll::cuda
