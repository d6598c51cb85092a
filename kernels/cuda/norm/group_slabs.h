#pragma once

// Which slabs of images blocks or clusters of blocks make, in group norms with channels last (group_norm_slabs.cu). No
// CUDA here: prices depend on it.

#include "kernels/cuda/common/partials.h"

namespace plimsoll::cuda {

// Blocks of a cluster on Hopper.
inline constexpr int64_t most_slab_parts = 8;

// Some whole groups of a sample, whose rows are wide enough for whole sectors of memory.
struct GroupSlab {
  static constexpr int most_threads = 512, most_channels = 512;

  int channels = 0;          // 0: there is none
  int parts = 1;             // blocks of a cluster
  int across = 0, down = 0;  // threads: accesses of a row, rows at a time
  int64_t kept_bytes = 0;    // of shared memory; 0: elements are read again

  // Rows of at least 64 bytes, or else of 32, where these fit the shared memory of a block; wider ones where positions
  // are few. A cluster of up to `most_parts` blocks has a slab that would not fit otherwise, and those of few samples.
  GroupSlab(const ChannelShape& shape, int64_t all_groups, int64_t element_bytes, int64_t tensors, int64_t most_parts) {
    constexpr int64_t wide_bytes = 64, least_bytes = 32, most_kept = int64_t{100} << 10, least_accesses = 512;
    constexpr int64_t least_blocks = 100;
    if (shape.inner == 0) return;  // slabs read their groups' first elements
    const int64_t n = vector_bytes / element_bytes, run = shape.channels / all_groups;
    for (int64_t groups = 1; groups <= all_groups; ++groups) {
      const int64_t tried = groups * run, row_bytes = tried * element_bytes;
      if (all_groups % groups != 0 || tried % n != 0 || row_bytes < least_bytes) continue;
      const int64_t slabs = shape.batch * (all_groups / groups);
      int64_t blocks = 1;
      const auto bytes_of_part = [&] { return tensors * row_bytes * divide_up(shape.inner, blocks); };
      while (blocks < most_parts && blocks < shape.inner &&
             (bytes_of_part() > most_kept || slabs * blocks < least_blocks))
        blocks *= 2;
      if (tried > most_channels || slabs * blocks < least_blocks) break;
      const bool keeps = bytes_of_part() <= most_kept;
      if (channels > 0 && kept_bytes > 0 && (!keeps || blocks > parts)) break;
      const int64_t positions = divide_up(shape.inner, blocks);
      channels = static_cast<int>(tried);
      parts = static_cast<int>(blocks);
      across = static_cast<int>(tried / n);
      down = 1;
      while (2 * down * across <= most_threads && down < positions) down *= 2;
      kept_bytes = keeps ? tensors * divide_up(positions, int64_t{down}) * down * row_bytes : 0;
      if (row_bytes >= wide_bytes && across * positions >= least_accesses) break;
    }
  }

  int64_t per_sample(int64_t all_channels) const { return all_channels / channels; }
};

}  // namespace plimsoll::cuda
