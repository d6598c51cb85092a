#pragma once

// Random words by position: Philox4x32 (Salmon et al. 2011), with 10 rounds, or with 7 for dropout. Any piece of a
// stream can be made anywhere, so threads share nothing and a mask is never stored.

#include "kernels/dropout.h"

#include <cstdint>

namespace plimsoll::cpu {

struct RandomStream {
  uint64_t seed = 0;
  uint32_t step = 0, id = 0;
  int64_t first_block = 0;
};

// words[i] = word `first + i` of the stream: lane (first + i) % 4 of block first_block + (first + i) / 4.
void random_words(const RandomStream& stream, int64_t first, int64_t count, uint32_t* words);

// words[i]: which of 32 probabilities attention's dropout keeps, a bit each. Word i is made of blocks
// first_block + (first + i) * dropout.blocks and those behind.
void kept_words(const RandomStream& stream, const Dropout& dropout, int64_t first, int64_t count, uint32_t* words);

// y = x * factor where an element's number is kept, else 0; y may be x. Of the stream, whose first block is 0, element
// i has number dropout.first_draw + i, which may be any here.
void dropout(const RandomStream& stream, const ElementDropout& dropout, float* y, const float* x, int64_t n);

}  // namespace plimsoll::cpu
