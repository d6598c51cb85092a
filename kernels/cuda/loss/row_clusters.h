#pragma once

// How rows of scores lie in the shared memory of clusters of blocks on Hopper. No CUDA here: plans are made where there
// is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// A block's threads that compute, and how many blocks share a multiprocessor. A part of a row comes and goes in chunks,
// four accesses for each of these threads.
template <int threads, int blocks_per_multiprocessor>
struct RowChunks {
  static constexpr int computing_threads = threads, resident_blocks = blocks_per_multiprocessor;
  static constexpr int accesses = 4, bytes = threads * accesses * 16;
};
// Rows that one block keeps, two of them a multiprocessor. Longer ones: few threads wait less for each other, and three
// blocks a multiprocessor are at different places of their rows. The longest fit blocks that have a multiprocessor
// each.
using ShortRows = RowChunks<384, 2>;
using LongRows = RowChunks<128, 3>;
using LongestRows = RowChunks<512, 1>;

// The blocks of a cluster have neighbouring parts of a row.
struct RowClusters {
  static constexpr int64_t access_bytes = 16, min_row = 16 * 1024, max_blocks = 8;
  // Of a part, in the 227 KiB of a multiprocessor: the rest is for barriers and sums.
  static constexpr int64_t max_short = 110 * 1024, max_long = 72 * 1024, max_longest = 222 * 1024;

  int64_t row_bytes;
  int blocks = 0;  // none: the row is too short or too long, or rows begin at no border of 16 bytes
  int chunk_bytes = 0;

  explicit constexpr RowClusters(int64_t bytes) : row_bytes(bytes) {
    if (bytes % access_bytes != 0 || bytes < min_row) return;
    if (!fits(ShortRows::bytes, max_short, 1) && !fits(LongRows::bytes, max_long, max_blocks))
      fits(LongestRows::bytes, max_longest, max_blocks);
  }
  // Chosen by the caller.
  constexpr RowClusters(int64_t bytes, int blocks, int chunk_bytes)
      : row_bytes(bytes), blocks(blocks), chunk_bytes(chunk_bytes) {}

  // Of the blocks that have the most.
  constexpr int chunks() const { return static_cast<int>(divide_up(divide_up(row_bytes, chunk_bytes), blocks)); }
  constexpr int part_bytes() const { return static_cast<int>(std::min(int64_t{chunks()} * chunk_bytes, row_bytes)); }

 private:
  constexpr bool fits(int chunk, int64_t max_part, int64_t most_blocks) {
    for (int count = 1; count <= most_blocks; count *= 2) {
      const RowClusters tried(row_bytes, count, chunk);
      if (tried.part_bytes() > max_part) continue;
      *this = tried;
      return true;
    }
    return false;
  }
};

}  // namespace plimsoll::cuda
