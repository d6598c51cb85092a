#pragma once

// How blocks share the lines that they sort, for the kernel and for what it is predicted to take.

#include <cstdint>

namespace plimsoll::cuda {

// Lines of at most 2^14 elements that blocks sort in shared memory. A line is padded to a power of two and sorted by
// runs of a power of two that is at least k; then two runs at a time become the run of the first of both.
struct SortedLines {
  int line_bits, run_bits;  // of the power of two
  int per_block;

  static constexpr int max_bits = 14;
  constexpr SortedLines(int64_t length, int64_t k) : line_bits(6), run_bits(0), per_block(1) {
    while (int64_t{1} << line_bits < length) ++line_bits;
    while (int64_t{1} << run_bits < k) ++run_bits;
    if (line_bits < 11) per_block = 1 << (11 - line_bits);
  }
  constexpr int keys() const { return per_block << line_bits; }
  constexpr int threads() const { return keys() / 4 < 1024 ? keys() / 4 : 1024; }
};

}  // namespace plimsoll::cuda
