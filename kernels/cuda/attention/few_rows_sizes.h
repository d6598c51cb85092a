#pragma once

// Which heads have so few rows and columns that a block has all scores of one at once, without CUDA: planning asks.

#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int max_few_rows = 64, max_few_rows_depth = 256;

// Heads of up to 128 elements in rows of whole 16-byte words have other kernels.
constexpr bool are_few_rows(int64_t rows, int64_t columns, int64_t depth, int64_t value_depth) {
  return rows > 0 && rows <= max_few_rows && columns > 0 && columns <= max_few_rows && depth == value_depth &&
         depth > 0 && depth <= max_few_rows_depth && (depth > 128 || depth % 8 != 0);
}

// A head in shared memory: rows and columns in whole tiles, whose elements end with 16 bytes that put neighbouring rows
// in different banks, then the weights of all pairs.
struct FewRows {
  int rows, columns, depth, pitch;

  static constexpr int weights_pitch = max_few_rows + 8;

  constexpr FewRows(int64_t all_rows, int64_t all_columns, int64_t all_depth)
      : rows(whole(all_rows)), columns(whole(all_columns)), depth(whole(all_depth)), pitch(depth + 8) {}

  constexpr int forward_bytes() const { return 2 * ((rows + 2 * columns) * pitch + rows * weights_pitch); }
  constexpr int gradient_bytes() const { return 4 * ((rows + columns) * pitch + rows * weights_pitch); }

 private:
  static constexpr int whole(int64_t count) { return static_cast<int>((count + 15) / 16 * 16); }
};

}  // namespace plimsoll::cuda
