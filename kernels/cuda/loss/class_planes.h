#pragma once

// Scores with dimensions behind their classes, as of the pixels of images: each class is a plane. How a block takes
// neighbouring pixels with all of their classes, which planning needs for the time.

#include "kernels/division.h"

#include <cstdint>

namespace plimsoll::cuda {

struct ClassPlanes {
  static constexpr int64_t threads = 256, word_bytes = 4;
  int64_t words = 0;  // words of a plane that a block has, a power of two; 0: planes are no whole words, or too many
  int64_t tiles = 0;  // blocks of a sample

  ClassPlanes(int64_t classes, int64_t inner, int64_t element_bytes) {
    constexpr int64_t widest = 256, narrowest = 32, many_blocks = int64_t{40} << 10, one_block = int64_t{200} << 10;
    if (inner <= 1 || inner * element_bytes % word_bytes != 0 || classes * narrowest * word_bytes > one_block) return;
    const int64_t plane = inner * element_bytes / word_bytes;
    words = widest;
    while (words > narrowest && (classes * words * word_bytes > many_blocks || plane <= words / 2)) words /= 2;
    tiles = divide_up(plane, words);
  }
  int64_t shared_bytes(int64_t classes) const { return classes * words * word_bytes; }
};

}  // namespace plimsoll::cuda
