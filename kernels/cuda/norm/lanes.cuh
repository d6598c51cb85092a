#pragma once

// Norms of rows that are short enough for some lanes of a warp share these.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"

namespace plimsoll::cuda {

// Every lane of a row gets the total. All lanes of the warp take part.
template <int lanes>
__device__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 1; distance < lanes; distance *= 2) value += __shfl_xor_sync(whole_warp, value, distance);
  return value;
}

// n neighbouring parameters in the words they have in memory; `otherwise` where there are none.
template <int n, typename P>
__device__ Packed<P, n> load_parameters(const P* parameters, int64_t column, float otherwise) {
  Vector<P, n> elements;
#pragma unroll
  for (int i = 0; i < n; ++i) elements.at[i] = narrow<P>(otherwise);
  if (parameters) elements = load_vector<n>(parameters + column);
  Packed<P, n> packed;
  memcpy(packed.word, elements.at, sizeof(elements));
  return packed;
}

}  // namespace plimsoll::cuda
