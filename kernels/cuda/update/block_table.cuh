#pragma once

// One launch over several tensors: each has a run of blocks. Tables travel as kernel parameters.

#include <cstdint>

namespace plimsoll::cuda {

template <int capacity>
struct BlockTable {
  unsigned first[capacity + 1] = {};  // block of each tensor, then the end
  int count = 0;

  void add(int64_t blocks) {
    first[count + 1] = first[count] + static_cast<unsigned>(blocks);
    ++count;
  }
  __host__ __device__ unsigned blocks() const { return first[count]; }

  // The tensor whose block that is; tensors without blocks are nobody's.
  __device__ int tensor_of(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace plimsoll::cuda
