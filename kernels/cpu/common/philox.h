#pragma once

// Random words by position: Philox4x32-10 (Salmon et al. 2011). Any piece of a stream can be made
// anywhere, so threads share nothing and a mask is never stored.

#include <cstdint>

namespace plimsoll::cpu {

struct RandomStream {
  uint64_t seed = 0;
  uint32_t step = 0, id = 0;
  int64_t first_block = 0;
};

// words[i] = word `first + i` of the stream: lane (first + i) % 4 of block first_block + (first + i) / 4.
void random_words(const RandomStream& stream, int64_t first, int64_t count, uint32_t* words);

// halves[i] = half 4 * first_block + first + i of the 16-bit halves of all blocks in a row, lower halves first.
void random_halves(const RandomStream& stream, int64_t first, int64_t count, uint16_t* halves);

// y = x / (1 - ratio) where an element's word * 2^-32 >= ratio, else 0; y may be x.
void dropout(const RandomStream& stream, double ratio, float* y, const float* x, int64_t n);

}  // namespace plimsoll::cpu
