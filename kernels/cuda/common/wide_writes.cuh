#pragma once

// Threads that write 16 bytes each of a tensor whose elements they fetch one by one, for copies whose rows begin at any
// address: reads of neighbours meet in the first-level cache, and no sector of 32 bytes is written in parts.

#include "kernels/cuda/common/element.cuh"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

template <typename Unit>
inline constexpr int units_per_write = static_cast<int>(sizeof(Bytes16) / sizeof(Unit));

inline bool takes_wide_writes(const void* to) { return reinterpret_cast<uintptr_t>(to) % sizeof(Bytes16) == 0; }

// to[first + j] = next() for all j < count of one write, in order. `to` is at an address of 16 bytes, first a multiple
// of units_per_write.
template <typename Unit, typename Next>
__device__ void write_wide(Unit* to, int64_t first, int64_t n, Next next) {
  constexpr int count = units_per_write<Unit>;
  Vector<Unit, count> units;
  if (first + count <= n) {
#pragma unroll
    for (int j = 0; j < count; ++j) units.at[j] = next();
    store_vector(to + first, units);
  } else {
    for (int64_t i = first; i < n; ++i) to[i] = next();
  }
}

}  // namespace plimsoll::cuda
