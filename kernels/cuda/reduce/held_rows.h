#pragma once

// Rows that a warp or a block keeps in registers between the passes over them. No CUDA here: prices depend on it.

#include "kernels/division.h"
#include "kernels/strides.h"

namespace plimsoll::cuda {

// Rows [outer, length, inner] along the middle, of which `inner` neighbours lie together as one span of elements. A
// power of 2 up to a warp's lanes divides the lanes evenly among neighbours.
struct HeldRows {
  static constexpr int few_held = 8, many_held = 32;  // elements of a thread
  static constexpr int wide_access = 4;               // elements
  static constexpr int most_threads = 512, lanes = 32;

  int64_t spans = 0;
  int size = 0;  // elements of a span; 0: such rows are not held
  int inner = 1;
  int access = 1;   // elements
  int held = 0;     // elements of a thread at most
  int threads = 0;  // of a span, whole warps

  // Elements that come one by one are few to a thread where that leaves them in one block.
  explicit HeldRows(const AxisShape& shape) {
    const int64_t elements = shape.length * shape.inner;
    access = shape.inner == 1 && elements % wide_access == 0 ? wide_access : 1;
    held = elements <= few_held * (access == 1 ? most_threads : lanes) ? few_held : many_held;
    if (shape.inner > lanes || (shape.inner & (shape.inner - 1)) != 0 || elements > many_held * most_threads) return;
    spans = shape.outer;
    size = static_cast<int>(elements);
    inner = static_cast<int>(shape.inner);
    threads = static_cast<int>(round_up(divide_up(size, held), lanes));
  }
  bool is_of_block() const { return threads > lanes; }
};

// Rows of few elements that lie apart, of which a thread keeps several that lie beside each other.
struct ShortColumns {
  static constexpr int64_t max_length = 16;

  static constexpr bool takes(const AxisShape& shape) { return shape.inner > 1 && shape.length <= max_length; }
};

}  // namespace plimsoll::cuda
