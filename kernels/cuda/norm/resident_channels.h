#pragma once

// Batch norms in one launch: blocks that are all there at once keep what they read for the sums in shared memory, wait
// for each other's sums, and go over it again. Formulas of shapes, which planning needs too.
//
// x with channels last is a flat stream of 16-byte words, whose channels repeat after every row of `row_words`: after
// the least common multiple of the channels and a word's elements. Where whole words are a divisor of the channels,
// rows are cut in slabs of neighbouring words, each with blocks of its own, so that a block merges the sums of fewer
// channels.

#include "kernels/cuda/common/partials.h"

#include <numeric>

namespace plimsoll::cuda {

inline constexpr int resident_threads = 512;
inline constexpr int64_t max_resident_blocks = 132;
inline constexpr int64_t resident_bytes_of_block = 208 * 1024;  // of shared memory, for what is kept

struct ResidentChannels {
  int64_t rows = 0, row_words = 0;              // no rows: the shape is not taken
  int slab_words = 0, slabs = 0, channels = 0;  // channels of a slab
  int parts = 0;                                // blocks of a slab, each with some of the rows

  ResidentChannels(const ChannelShape& shape, int64_t element_bytes, int64_t blocks = max_resident_blocks) {
    constexpr int64_t widest_slab = 64, least_slab = 8, words_per_thread = 2;
    constexpr int64_t max_slabs = 78;  // so many multiprocessors the smallest card of this capability has
    const int64_t elements = vector_bytes / element_bytes, shared = std::gcd(shape.channels, elements);
    if (!shape.channels_last || shape.channels == 0 || shape.per_channel() == 0) return;
    const int64_t repeats = elements / shared, across = shape.channels / shared;
    if (shape.per_channel() % repeats != 0) return;
    int64_t slab = across;
    if (repeats == 1)
      for (int64_t words = across; words >= 4; --words)
        if (across % words == 0 && (words >= least_slab || slab > widest_slab)) slab = words;
    if (slab > widest_slab || across / slab > std::min(max_slabs, blocks)) return;
    rows = shape.per_channel() / repeats;
    row_words = across;
    slab_words = static_cast<int>(slab);
    slabs = static_cast<int>(across / slab);
    channels = static_cast<int>(shape.channels / slabs);
    const int64_t useful = std::max<int64_t>(rows * slab / (words_per_thread * resident_threads), 1);
    parts = static_cast<int>(std::min({blocks / slabs, useful, rows}));
  }
  bool is_taken() const { return rows != 0; }
};

// Floats: two sums of each channel and part.
inline int64_t resident_workspace(const ChannelShape& shape, int64_t element_bytes) {
  return 2 * ResidentChannels(shape, element_bytes).parts * shape.channels;
}

}  // namespace plimsoll::cuda
