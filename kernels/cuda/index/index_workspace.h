#pragma once

// How the index kernels divide their workspace. No CUDA here: plans are made where there is none.

#include "kernels/division.h"

#include <cstdint>

namespace plimsoll::cuda {

// Arrays in a workspace begin where a tensor may begin in an arena.
constexpr int64_t array_bytes(int64_t bytes) { return round_up(bytes, 256); }

// Pairs a block of the sort moves, and its digits.
inline constexpr int64_t sort_tile = 2048, sort_digits = 256;

// How many keys of each digit each tile holds, and how many there are of each.
constexpr int64_t sort_counts(int64_t n) { return sort_digits * (divide_up(n, sort_tile) + 1); }

// Keys and positions twice, and the counts.
constexpr int64_t sort_workspace_bytes(int64_t n) { return 4 * array_bytes(4 * n) + array_bytes(4 * sort_counts(n)); }

// Keys and positions once, which are sorted into the results and back, and the counts.
constexpr int64_t sort_indices_workspace_bytes(int64_t n) {
  return 2 * array_bytes(4 * n) + array_bytes(4 * sort_counts(n));
}

// f32 sums of lines that a block holds in shared memory, which are 48 KiB.
inline constexpr int64_t max_line_floats = 12288;

// Does a block hold a line of [outer, size, inner], or 32 lines that lie side by side?
constexpr bool lines_fit(int64_t size, int64_t inner) { return size * (inner == 1 ? 1 : 32) <= max_line_floats; }

// Slices whose sums a warp makes together where they share their indices.
inline constexpr int shared_slices_per_warp = 4;

// Does a block hold where a set's updates start and their order, and the updates of a warp's slices in f32?
constexpr bool shared_lines_fit(int64_t size, int64_t count) {
  return size + 1 + count + shared_slices_per_warp * round_up(count, 8) <= max_line_floats;
}

// Of each set where the updates of each element start, and the updates in that order.
constexpr int64_t shared_lines_workspace_bytes(int64_t sets, int64_t size, int64_t count) {
  return array_bytes(4 * sets * (size + 1)) + array_bytes(4 * sets * count);
}

// Sorted entries that one thread combines at most; a segment of more is combined in chunks.
inline constexpr int64_t segment_chunk = 128;

// Two partial results a chunk, for `count` entries of [outer, inner] elements; they have `sum_bytes` an element.
constexpr int64_t segment_reduce_workspace_bytes(int64_t outer, int64_t inner, int64_t count, int64_t sum_bytes) {
  const int64_t chunks = count > segment_chunk ? divide_up(count, segment_chunk) : 0;
  return array_bytes(2 * chunks * outer * inner * sum_bytes);
}

// How threads share the columns of a head of gathered rows: each of the 2^log2_lanes neighbours of a group has `runs`
// vectors of `length` elements, and `blocks` groups have a head.
enum class GatherBlocks : uint8_t { Any, Heads };  // Heads: one group has a whole head, since it adds up its products
struct GatherLanes {
  int length = 1, runs = 1, log2_lanes = 2;
  int64_t blocks = 1;

  GatherLanes() = default;
  GatherLanes(int64_t of_head, int64_t element_bytes, GatherBlocks blocks_of) {
    const int64_t whole = 16 / element_bytes;
    length = static_cast<int>(of_head % whole == 0 ? whole : of_head % (whole / 2) == 0 ? whole / 2 : 1);
    const int64_t vectors = of_head / length;
    runs = vectors > 32 && (blocks_of == GatherBlocks::Heads || element_bytes == 4) ? 2 : 1;
    while (log2_lanes < 5 && (runs << log2_lanes) < vectors) ++log2_lanes;
    blocks = divide_up(vectors, int64_t{runs} << log2_lanes);
  }
};

// The sort, where each row's indices start, and the partial sums, for dx [outer, size, inner].
constexpr int64_t gather_grad_workspace_bytes(int64_t outer, int64_t size, int64_t inner, int64_t count,
                                              int64_t sum_bytes) {
  return sort_workspace_bytes(count) + array_bytes(4 * (size + 1)) +
         segment_reduce_workspace_bytes(outer, inner, count, sum_bytes);
}

// How blocks of `scan_warps` warps share the rows of dx [outer, size, inner] where each looks through all indices: each
// warp has sums of its block's rows in shared memory.
inline constexpr int scan_warps = 32;
struct ScannedRows {
  int64_t rows, blocks;  // rows of a block; blocks of all outer

  ScannedRows(int64_t outer, int64_t size, int64_t inner) {
    constexpr int64_t wanted_blocks = 132;
    const int64_t most = max_line_floats / (scan_warps * (inner > 0 ? inner : 1));
    rows = divide_up(outer * size, wanted_blocks);
    if (rows > size) rows = size;
    if (rows > most) rows = most;
    if (rows < 1) rows = 1;
    blocks = outer * divide_up(size, rows);
  }
  static bool fit(int64_t inner) { return scan_warps * inner <= max_line_floats; }
};

// How blocks share running sums along the middle of [outer, length, inner]: each has a part of up to 8 neighbouring
// lines, and each of its threads `part_run` elements of one line.
inline constexpr int64_t part_threads = 256, part_run = 8;
struct ScannedParts {
  int64_t columns, threads_per_line, parts;  // parts of each line

  ScannedParts(int64_t length, int64_t inner) {
    columns = inner < 8 ? inner : 8;
    threads_per_line = part_threads / (columns > 0 ? columns : 1);
    parts = divide_up(length, threads_per_line * part_run);
  }
};

constexpr int64_t scan_parts_workspace_bytes(int64_t outer, int64_t parts, int64_t inner) {
  return array_bytes(8 * outer * parts * inner);
}

}  // namespace plimsoll::cuda
