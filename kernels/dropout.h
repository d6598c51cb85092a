#pragma once

// What dropout keeps, as the kernels of both backends read it. The rules are those of ir/support/philox.h.

#include <cstdint>

namespace plimsoll {

inline constexpr int dropout_rounds = 7;  // of Philox

// Of elements: an element's number has 16 bits, and eight neighbours share a block of Philox, two a lane.
struct ElementDropout {
  static constexpr int elements_per_block = 8;

  uint32_t dropped = 0;    // numbers below it are dropped, 2^16: all
  double factor = 1;       // what is kept is multiplied with it
  int64_t first_draw = 0;  // the number of element 0, a multiple of 4
};

// Of attention's probabilities: the lanes of a word's blocks of Philox are the bits, lowest first, of 32 numbers at
// once, and those below a threshold are dropped. From the lowest bit on, `kept & lane` compares with a bit of the
// threshold that is 1, and `kept | lane` with one that is 0.
struct Dropout {
  static constexpr int max_bits = 16;

  int32_t blocks = 0;                       // of Philox for a word, 2 or 4; 0: nothing is dropped
  float kept_share = 1.0f, factor = 1.0f;   // kept probabilities are multiplied with factor, 1 / kept_share
  uint32_t threshold_zeros[max_bits] = {};  // all ones where that bit of the threshold is 0
};

}  // namespace plimsoll
