#pragma once

// Reading indices on the device, and where element and tuple indices point.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/index/index.h"

#include <type_traits>

namespace plimsoll::cuda {

// Index i of a dimension of `size`, counted from its start.
__device__ inline int64_t index_at(const Indices& indices, int64_t i, int64_t size) {
  const int64_t index = indices.type == Scalar::I64 ? static_cast<const int64_t*>(indices.data)[i]
                                                    : static_cast<const int32_t*>(indices.data)[i];
  const int64_t from_start = index < 0 ? index + size : index;
  if (from_start < 0 || from_start >= size) __trap();
  return from_start;
}

// `length` indices in a row, the first at a multiple of `length`, as 32-bit places.
template <int length>
__device__ void load_places(const Indices& indices, int64_t first, int64_t size, int (&places)[length]) {
  auto take = [&](const auto* from) {
    using Index = std::remove_cvref_t<decltype(*from)>;
    constexpr int words = length * sizeof(Index) <= 16 ? 1 : length * sizeof(Index) / 16, n = length / words;
#pragma unroll
    for (int word = 0; word < words; ++word) {
      const Vector<Index, n> loaded = load_vector<n>(from + first + word * n);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int64_t index = loaded.at[i], from_start = index < 0 ? index + size : index;
        if (from_start < 0 || from_start >= size) __trap();
        places[word * n + i] = static_cast<int>(from_start);
      }
    }
  };
  if (indices.type == Scalar::I64)
    take(static_cast<const int64_t*>(indices.data));
  else
    take(static_cast<const int32_t*>(indices.data));
}

struct ElementPlaces {
  DeviceNest<2> nest;
  Indices indices;
  Divider count;
  int64_t size, axis_stride;

  explicit ElementPlaces(const ElementIndices& from)
      : nest(collapse(from.nest)),
        indices(from.indices),
        count(from.count),
        size(from.size),
        axis_stride(from.axis_stride) {}

  __device__ int64_t operator()(int64_t i) const {
    int64_t at[2];
    nest.offsets(i, at);
    count.divide(i);
    return at[1] + index_at(indices, i, size) * axis_stride;
  }
};

struct TuplePlaces {
  TupleIndices from;
  Divider batches;

  explicit TuplePlaces(const TupleIndices& places) : from(places), batches(places.tuples_per_batch) {}

  __device__ int64_t operator()(int64_t tuple) const {
    int64_t in_batch = tuple, at = batches.divide(in_batch) * from.batch_size;
    for (int d = 0; d < from.depth; ++d)
      at += index_at(from.indices, tuple * from.depth + d, from.sizes[d]) * from.strides[d];
    return at;
  }
};

// The widest unit of up to 16 bytes that divides a run.
inline int unit_of_run(int64_t bytes) {
  int unit = 16;
  while (bytes % unit != 0) unit /= 2;
  return unit;
}

}  // namespace plimsoll::cuda
