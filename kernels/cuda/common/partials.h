#pragma once

// Into how many parts the kernels cut their sums: formulas of shapes, which planning needs for workspaces where there
// is no CUDA. Block counts aim at two blocks and more a multiprocessor of the largest chips.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int64_t vector_bytes = 16;

// At most so many blocks each sum the gradients of row norms' parameters over some of the rows: one on each of 132
// multiprocessors.
inline int64_t row_norm_partials(int64_t rows) { return std::clamp<int64_t>(rows, 1, 132); }

// x [batch, channels, inner], or [batch, inner, channels] with channels_last.
struct ChannelShape {
  int64_t batch, channels, inner;
  bool channels_last;

  constexpr int64_t per_channel() const { return batch * inner; }
};

// With channels last, scale and bias of a group's channels wait in shared memory, 48 KiB of which a block has without
// asking; sums need some of it.
inline constexpr int64_t max_channels_per_group = 6000;

// Blocks of 256 threads over a matrix [rows, columns] of accesses: `across` threads, at most `widest`, for columns, the
// others for rows.
struct ColumnTiles {
  int64_t across = 1, column_blocks, row_blocks;

  ColumnTiles(int64_t rows, int64_t columns, int64_t wanted_blocks, int64_t widest = 256) {
    while (across < widest && across < columns) across *= 2;
    column_blocks = std::max<int64_t>(divide_up(columns, across), 1);
    const int64_t useful = divide_up(rows, 4 * down());
    row_blocks = std::clamp<int64_t>(wanted_blocks / column_blocks, 1, std::clamp<int64_t>(useful, 1, 65535));
  }
  int64_t down() const { return 256 / across; }
};

// Elements an access holds: its bytes' worth where they divide the innermost dimension.
inline int64_t access_length(int64_t innermost, int64_t element_bytes, int64_t access_bytes = vector_bytes) {
  const int64_t whole = access_bytes / element_bytes;
  return innermost % whole == 0 ? whole : 1;
}
inline int64_t access_length(const ChannelShape& shape, int64_t element_bytes, int64_t last_bytes) {
  return shape.channels_last ? access_length(shape.channels, element_bytes, last_bytes)
                             : access_length(shape.inner, element_bytes);
}

// Blocks of batch norms that 132 multiprocessors hold at once.
inline constexpr int resident_blocks = 3;
inline constexpr int64_t one_wave = 132 * resident_blocks;

// Bytes of an access of batch norms with channels last. Backward keeps up to seven numbers per channel in registers: of
// fewer channels a thread, more loads can be in flight.
inline constexpr int64_t norm_access_bytes = vector_bytes, norm_grad_access_bytes = 8;

// Statistics with channels last: a warp for 32 accesses of a row, so that a block merges many rows into one partial.
inline ColumnTiles statistics_tiles(int64_t rows, int64_t columns) { return {rows, columns, one_wave, 32}; }

// Blocks that each take the statistics of a part of a channel.
inline int64_t channel_parts(const ChannelShape& shape, int64_t element_bytes, int64_t last_bytes) {
  const int64_t length = access_length(shape, element_bytes, last_bytes);
  if (shape.channels_last) return statistics_tiles(shape.per_channel(), shape.channels / length).row_blocks;
  const int64_t useful = std::clamp<int64_t>(divide_up(shape.per_channel() / length, 4 * 256), 1, 65535);
  return std::clamp<int64_t>(2112 / std::max<int64_t>(shape.channels, 1), 1, useful);
}

// Floats of workspace of batch norms: partial statistics, then coefficients of each channel.
inline int64_t batch_norm_workspace(const ChannelShape& shape, int64_t element_bytes) {
  return (channel_parts(shape, element_bytes, norm_access_bytes) * 3 + 3) * shape.channels;
}
inline int64_t batch_norm_grad_workspace(const ChannelShape& shape, int64_t element_bytes) {
  return (channel_parts(shape, element_bytes, norm_grad_access_bytes) * 2 + 5) * shape.channels;
}
inline int64_t batch_norm_inference_workspace(const ChannelShape& shape) { return 3 * shape.channels; }
inline int64_t batch_norm_dx_workspace(const ChannelShape& shape) { return 5 * shape.channels; }

// A sum of squares over several tensors of `total` elements: elements each block takes of one of them, whole accesses,
// and the blocks of a tensor.
inline int64_t squares_block(int64_t total) {
  return std::max<int64_t>(8192, divide_up(divide_up(total, 2112), 1024) * 1024);
}
inline int64_t squares_parts(int64_t elements, int64_t block) { return divide_up(elements, block); }

// Blocks that each add the losses of some rows, and the floats of workspace: a loss and a weight each row and block.
inline int64_t loss_parts(int64_t rows) { return std::clamp<int64_t>(divide_up(rows, 1024), 1, 256); }
inline int64_t loss_workspace(int64_t rows) { return 2 * (rows + loss_parts(rows)); }

}  // namespace plimsoll::cuda
