#pragma once

// Group norms by parts of images, for groups that are too few to have a block each and too large for shared memory.
// Formulas of shapes, which planning needs too.

#include "kernels/cuda/common/partials.h"

#include <numeric>

namespace plimsoll::cuda {

// Bytes of an access. Backward has up to six numbers for each of a thread's channels in registers: of fewer channels,
// more loads can be in flight.
inline constexpr int64_t group_part_bytes = vector_bytes, group_part_grad_bytes = 8;

// x as planes of rows of accesses. With channels last a plane is a sample, and a row has all channels of a position, or
// of several where these make whole accesses together; with channels first a plane is a channel of a sample. A thread
// owns an access of a row, hence its channels, and goes down the rows of its block's part.
struct GroupParts {
  int64_t planes, channels;   // channels: of a plane
  int64_t inner;              // positions of a plane
  int64_t length = 1;         // elements of an access
  int64_t positions = 1;      // of a row
  int64_t across = 1;         // threads for the accesses of a row, of 256
  int64_t column_blocks = 1;  // blocks for the accesses of a row
  int64_t parts = 1;          // blocks for the rows of a plane

  GroupParts(const ChannelShape& shape, int64_t element_bytes, int64_t access_bytes)
      : planes(shape.channels_last ? shape.batch : shape.batch * shape.channels),
        channels(shape.channels_last ? shape.channels : 1),
        inner(shape.inner) {
    const int64_t whole = access_bytes / element_bytes, repeats = whole / std::gcd(channels, whole);
    if (inner % repeats == 0) length = whole, positions = repeats;
    choose_columns();
    choose_parts();
  }

  int64_t columns() const { return positions * channels / length; }
  int64_t rows() const { return inner / positions; }
  int64_t down() const { return 256 / across; }
  bool is_whole() const { return length > 1; }
  // Of each channel of a plane: one of every part and, beside other channels, of every position of a row.
  constexpr int64_t partials() const { return channels == 1 ? parts : parts * positions; }
  int64_t all_partials() const { return planes * partials() * channels; }
  // Threads for each access of a row: some have none.
  double threads_per_column() const {
    return static_cast<double>(across * column_blocks) / static_cast<double>(std::max<int64_t>(columns(), 1));
  }

 private:
  // The widest blocks of those that leave the fewest threads without an access. Eight whole accesses are sectors of
  // memory that no other block reads.
  void choose_columns() {
    constexpr int64_t widest = 32, least_whole = 8;
    const auto tiles_of = [&](int64_t width) { return std::max<int64_t>(divide_up(columns(), width), 1); };
    while (across < widest && across < columns()) across *= 2;
    column_blocks = tiles_of(across);
    for (int64_t tried = across / 2; is_whole() && tried >= least_whole; tried /= 2)
      if (tried * tiles_of(tried) < across * column_blocks) across = tried, column_blocks = tiles_of(tried);
  }
  // A wave of blocks, or of several waves those that leave the least of the last one empty.
  void choose_parts() {
    constexpr double enough = 0.95;
    const int64_t blocks = std::max<int64_t>(planes * column_blocks, 1);
    const int64_t useful = std::clamp<int64_t>(divide_up(rows(), 4 * down()), 1, 65535);
    const int64_t least = std::clamp<int64_t>(one_wave / blocks, 1, useful), most = std::min(useful, 8 * least);
    double best = 0;
    for (int64_t tried = least; tried <= most && best < enough; ++tried) {
      const int64_t all = blocks * tried;
      const double filled = static_cast<double>(all) / static_cast<double>(round_up(all, one_wave));
      if (filled > best) best = filled, parts = tried;
    }
  }
};

// Floats: moments of each partial.
inline int64_t group_parts_workspace(const ChannelShape& shape, int64_t element_bytes) {
  return 3 * GroupParts(shape, element_bytes, group_part_bytes).all_partials();
}

// Floats: two sums of each channel of each sample, two averages of each group, two sums of each partial.
inline int64_t group_parts_grad_workspace(const ChannelShape& shape, int64_t groups, int64_t element_bytes) {
  const int64_t partials = GroupParts(shape, element_bytes, group_part_grad_bytes).all_partials();
  return 2 * (shape.batch * shape.channels + shape.batch * groups + partials);
}

}  // namespace plimsoll::cuda
