#pragma once

// What dropout keeps of attention's probabilities, as the kernels of both backends read it. The rule is that of
// ir/support/philox.h: the lanes of a word's blocks of Philox are the bits, lowest first, of 32 numbers at once, and
// those below a threshold are dropped. From the lowest bit on, `kept & lane` compares with a bit of the threshold that
// is 1, and `kept | lane` with one that is 0.

#include <cstdint>

namespace plimsoll {

struct Dropout {
  static constexpr int rounds = 7, max_bits = 16;

  int32_t blocks = 0;                       // of Philox for a word, 2 or 4; 0: nothing is dropped
  float kept_share = 1.0f, factor = 1.0f;   // kept probabilities are multiplied with factor, 1 / kept_share
  uint32_t threshold_zeros[max_bits] = {};  // all ones where that bit of the threshold is 0
};

}  // namespace plimsoll
