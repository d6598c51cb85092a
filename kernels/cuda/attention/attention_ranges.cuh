#pragma once

// Which tiles of the other side a tile of rows or columns meets at all: those that the diagonal, the window, segments
// and masks of columns leave.

#include "kernels/cuda/attention/attention_mma.cuh"

#include <climits>

namespace plimsoll::cuda {

// The columns that rows [first, first + count) may meet, or the rows that such columns may: from `first`, at a border
// of tiles, to before `end`.
struct Range {
  int first, end;
};

// Leaves a range from the first tile of `size` others to the last that meets(tile) takes. Every warp comes to the same.
template <typename Meets>
__device__ void narrow(Range& range, int others, int size, Meets meets) {
  const int end = (min(range.end, others) + size - 1) / size;
  int lowest = INT_MAX, highest = -1;
  for (int i = range.first / size + static_cast<int>(threadIdx.x) % 32; i < end; i += 32)
    if (meets(i)) lowest = min(lowest, i), highest = i;
  lowest = __reduce_min_sync(whole_warp, lowest);
  highest = __reduce_max_sync(whole_warp, highest);
  if (highest < 0) {
    range.end = range.first;
    return;
  }
  range.first = max(range.first, lowest * size);
  range.end = min(range.end, (highest + 1) * size);
}

// The segments of sixty-four neighbouring rows each, of one sample.
__device__ inline const SegmentTile* segment_tiles(const AttentionShape& n, const Head& head) {
  const int64_t tiles = (n.columns + segment_tile - 1) / segment_tile;
  return n.segment_tiles + (n.segments_step > 0 ? head.b * tiles : 0);
}

// Fills the workspace for segments, if there are any.
[[nodiscard]] cudaError_t launch_segment_tiles(const AttentionShape& shape, cudaStream_t stream);

// Leaves the tiles that may have a segment of the rows `first` to `last`, and what lies between them. Where documents
// follow one another, these are the tiles that share a document with the rows.
__device__ inline void narrow_to_segments(Range& range, const AttentionShape& n, const Head& head, int first,
                                          int last) {
  const SegmentTile* const tiles = segment_tiles(n, head);
  SegmentTile own = tiles[first / segment_tile];
  for (int i = first / segment_tile + 1; i <= last / segment_tile && i * segment_tile < n.columns; ++i) {
    own.low = min(own.low, tiles[i].low);
    own.high = max(own.high, tiles[i].high);
  }
  narrow(range, static_cast<int>(n.columns), segment_tile,
         [&](int i) { return tiles[i].low <= own.high && own.low <= tiles[i].high; });
}

// Is the mask the same for all rows of a head? Kernels that own rows then keep a tile of it in shared memory.
__device__ inline bool is_mask_of_columns(const AttentionShape& n) { return n.mask && n.mask_strides[2] == 0; }

// The tiles of a mask's columns for one batch element, or null where they are not noted.
__device__ inline const ColumnTile* tiles_of_mask(const AttentionShape& n, const Head& head) {
  if (!n.column_tiles) return nullptr;
  const int64_t tiles = (n.columns + column_tile - 1) / column_tile;
  return n.column_tiles + (n.mask_strides[0] != 0 ? head.b * tiles : 0);
}

// Of the tile in which columns from `first` on lie, as far as it is noted.
__device__ inline ColumnTile noted_tile(const AttentionShape& n, const ColumnTile* tiles, int first) {
  return tiles && first < n.columns ? tiles[first / column_tile] : ColumnTile::Mixed;
}

// Fills the workspace for a mask's columns, if there is one.
[[nodiscard]] cudaError_t launch_column_tiles(const AttentionShape& shape, cudaStream_t stream);

template <Owner owner>
__device__ Range range_of_others(const AttentionShape& n, int first, int count, int tile) {
  const int others = static_cast<int>(owner == Owner::Rows ? n.columns : n.rows);
  const int window = static_cast<int>(n.window), last = first + count - 1;
  Range range{0, others};
  if (n.causal && owner == Owner::Rows) range.end = min(range.end, last + 1);
  if (n.causal && owner == Owner::Columns) range.first = first;
  if (window > 0) {
    range.first = max(range.first, first - window + 1);
    range.end = min(range.end, last + window);
  }
  range.first = range.first / tile * tile;
  return range;
}
// Of one head, without tiles that no segment of the rows or columns reaches or whose columns are all closed.
template <Owner owner>
__device__ Range range_of_others(const AttentionShape& n, const Head& head, int first, int count, int tile) {
  Range range = range_of_others<owner>(n, first, count, tile);
  if (n.segments) narrow_to_segments(range, n, head, first, first + count - 1);
  const ColumnTile* const tiles = tiles_of_mask(n, head);
  if (!tiles) return range;
  Range columns = owner == Owner::Rows ? range : Range{first, first + count};
  narrow(columns, static_cast<int>(n.columns), column_tile, [&](int i) { return tiles[i] != ColumnTile::Closed; });
  if (owner == Owner::Rows) return columns;
  if (columns.first == columns.end) range.end = range.first;
  return range;
}

// The others of which every tile inside is open: neither the diagonal nor the window nor the last column closes any of
// it. What would lie beyond the last row is 0 where it is read, and not stored.
template <Owner owner>
__device__ Range open_others(const AttentionShape& n, int first, int count) {
  const int last = first + count - 1, window = static_cast<int>(n.window);
  Range open{0, owner == Owner::Rows ? static_cast<int>(n.columns) : INT_MAX};
  if (n.causal && owner == Owner::Rows) open.end = min(open.end, first + 1);
  if (n.causal && owner == Owner::Columns) open.first = last;
  if (window > 0) {
    open.first = max(open.first, last - window + 1);
    open.end = min(open.end, first + window);
  }
  return open;
}

}  // namespace plimsoll::cuda
