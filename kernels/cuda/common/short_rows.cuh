#pragma once

// Some neighbouring lanes take a row of a few elements, several rows at a time, and keep its elements in registers.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/short_rows.h"

namespace plimsoll::cuda {

// Of several rows at once, those of a thread: row r is first + r * step.
template <int n, int held, int at_once>
struct TeamOfRow {
  int lanes, lane, accesses;
  int64_t first, step, count, length;

  __device__ explicit TeamOfRow(const RowsByLanes& rows)
      : lanes(rows.lanes),
        lane(static_cast<int>(threadIdx.x) & (rows.lanes - 1)),
        accesses(rows.accesses),
        step(static_cast<int>(blockDim.x) / rows.lanes),
        count(rows.count),
        length(rows.length) {
    first = int64_t{blockIdx.x} * (step * at_once) + static_cast<int>(threadIdx.x) / rows.lanes;
  }
  __device__ bool has(int r, int k) const { return first + r * step < count && lane + k * lanes < accesses; }
  __device__ int64_t at(int r, int k) const { return (first + r * step) * length + (lane + k * lanes) * n; }

  template <typename T>
  __device__ void load(Packed<T, n> (&to)[at_once][held], const T* from) const {
#pragma unroll
    for (int r = 0; r < at_once; ++r)
#pragma unroll
      for (int k = 0; k < held; ++k)
        if (has(r, k)) to[r][k] = load_packed<n>(from + at(r, k));
  }
  // Every lane of a row gets the total, whichever side of `combine` its part stands on. All lanes of the warp take
  // part.
  template <typename Combine>
  __device__ float reduce(float value, Combine combine) const {
    for (int distance = 1; distance < lanes; distance *= 2)
      value = combine(value, __shfl_xor_sync(whole_warp, value, distance));
    return value;
  }
};

inline constexpr int short_row_threads = 256;

// Calls launch(n, held, at_once, blocks), of which all but the blocks are integral constants.
template <typename T, typename Launch>
void with_short_rows(const RowsByLanes& rows, Launch launch) {
  const auto with = [&](auto n) {
    constexpr int access_bytes = n * sizeof(T), held = RowsByLanes::held_of(access_bytes);
    constexpr int at_once = RowsByLanes::is_wide_access(access_bytes) ? 4 : 2;
    launch(n, std::integral_constant<int, held>(), std::integral_constant<int, at_once>(),
           blocks_for(rows.count, int64_t{short_row_threads / rows.lanes} * at_once));
  };
  if constexpr (sizeof(T) == 2)
    if (rows.access == 8) return with(std::integral_constant<int, 8>());
  if (rows.access == 4) return with(std::integral_constant<int, 4>());
  if (rows.access == 2) return with(std::integral_constant<int, 2>());
  with(std::integral_constant<int, 1>());
}

}  // namespace plimsoll::cuda
