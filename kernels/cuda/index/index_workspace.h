#pragma once

// How the index kernels divide their workspace. No CUDA here: plans are made where there is none.

#include "ir/support/align.h"

#include <cstdint>

namespace plimsoll::cuda {

constexpr int64_t pieces_of(int64_t n, int64_t piece) { return (n + piece - 1) / piece; }

// Pairs a block of the sort moves, and its digits.
inline constexpr int64_t sort_tile = 2048, sort_digits = 256;

// Keys and positions twice, and how many keys of each digit each tile holds.
constexpr int64_t sort_workspace_bytes(int64_t n) {
  return 4 * align_to_tensor(4 * n) + align_to_tensor(4 * sort_digits * pieces_of(n, sort_tile));
}

// Sorted indices that one thread adds up at most; a row that is picked more often is summed in chunks.
inline constexpr int64_t gather_grad_chunk = 128;

// The sort, where each row's indices start, and two partial sums a chunk, for dx [outer, size, inner] and `count`
// indices; partial sums have `sum_bytes` an element.
constexpr int64_t gather_grad_workspace_bytes(int64_t outer, int64_t size, int64_t inner, int64_t count,
                                              int64_t sum_bytes) {
  const int64_t chunks = count > gather_grad_chunk ? pieces_of(count, gather_grad_chunk) : 0;
  return sort_workspace_bytes(count) + align_to_tensor(4 * (size + 1)) +
         align_to_tensor(2 * chunks * outer * inner * sum_bytes);
}

}  // namespace plimsoll::cuda
