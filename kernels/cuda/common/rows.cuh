#pragma once

// Kernels over rows share 16-byte access to rows that start anywhere, and reductions over a warp or a block in a fixed
// order.

#include "kernels/cuda/common/element.cuh"

#include <cuda_runtime.h>

namespace plimsoll::cuda {

// Elements of a 16-byte access.
template <typename T>
inline constexpr int vector_length = 16 / static_cast<int>(sizeof(T));

// Thread `t` of `threads` visits its share of a row: visit(index, elements), elements being a Vector of one element or
// of 16 bytes, which an equal row at an equal place modulo 16 bytes can be accessed by as well.
template <typename T, typename Visit>
__device__ void for_row(const T* row, int64_t length, int t, int threads, Visit visit) {
  constexpr int n = vector_length<T>;
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % n);
  const int64_t to_border = (n - past) % n, head = to_border < length ? to_border : length;
  const int64_t body = (length - head) / n * n;
  for (int64_t i = t; i < head; i += threads) visit(i, load_vector<1>(row + i));
#pragma unroll 4
  for (int64_t i = head + int64_t{n} * t; i < head + body; i += int64_t{n} * threads) visit(i, load_vector<n>(row + i));
  for (int64_t i = head + body + t; i < length; i += threads) visit(i, load_vector<1>(row + i));
}

struct Add {
  template <typename V>
  __device__ V operator()(const V& a, const V& b) const {
    return a + b;
  }
};
// NaN wins.
struct Larger {
  template <typename V>
  __device__ V operator()(const V& a, const V& b) const {
    return b != b || a < b ? b : a;
  }
};

// Any trivially copyable value made of whole 32-bit words, from the lane `distance` away.
template <typename V>
__device__ V shuffle_xor(const V& value, int distance) {
  static_assert(sizeof(V) % sizeof(uint32_t) == 0, "moves whole words");
  constexpr int words = sizeof(V) / sizeof(uint32_t);
  union Words {
    V value;
    uint32_t at[words];
    __device__ Words() {}
  } moved;
  moved.value = value;
#pragma unroll
  for (int i = 0; i < words; ++i) moved.at[i] = __shfl_xor_sync(whole_warp, moved.at[i], distance);
  return moved.value;
}

// Every lane gets the total. All lanes of the warp take part. The lower lane's part stands on the left, so that all
// lanes compute the same bits.
template <typename V, typename Combine>
__device__ V warp_reduce(V value, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const V other = shuffle_xor(value, distance);
    value = lane & distance ? combine(other, value) : combine(value, other);
  }
  return value;
}

// Every thread of a block of whole warps gets the total; `empty` changes nothing that it is combined with.
template <typename V, typename Combine>
__device__ V block_reduce(V value, Combine combine, V empty) {
  __shared__ alignas(16) unsigned char bytes[warp_threads * sizeof(V)];
  V* of_warps = reinterpret_cast<V*>(bytes);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  value = warp_reduce(value, combine);
  __syncthreads();  // the shared memory may still be read by an earlier reduction
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / warp_threads ? of_warps[lane] : empty;
  return warp_reduce(value, combine);
}

struct RowStatistics {
  float mean, rstd;
};

// The mean and 1 / deviation of `count` elements, the mean being 0 where they are not centered. for_values calls what
// it is given with every Vector of this thread's share, twice; every thread of the block gets the result.
template <bool centered = true, typename ForValues>
__device__ RowStatistics block_statistics(float count, float eps, ForValues for_values) {
  float sum = 0, squares = 0;
  if (centered)
    for_values([&](const auto& values) {
      for (auto value : values.at) sum += widen(value);
    });
  const float mean = centered ? block_reduce(sum, Add(), 0.0f) / count : 0.0f;
  for_values([&](const auto& values) {
    for (auto value : values.at) squares += (widen(value) - mean) * (widen(value) - mean);
  });
  return {mean, 1.0f / sqrtf(block_reduce(squares, Add(), 0.0f) / count + eps)};
}

// Who works on a row together: a warp or a whole block.
enum class RowTeam : uint8_t { Warp, Block };

template <RowTeam team, typename V, typename Combine>
__device__ V team_reduce(V value, Combine combine, V empty) {
  if constexpr (team == RowTeam::Warp)
    return warp_reduce(value, combine);
  else
    return block_reduce(value, combine, empty);
}
template <RowTeam team>
__device__ float team_sum(float value) {
  return team_reduce<team>(value, Add(), 0.0f);
}

// The row of this thread's team, and its place in the team.
template <RowTeam team>
__device__ int64_t team_row() {
  if constexpr (team == RowTeam::Block) return blockIdx.x;
  return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp_threads;
}
template <RowTeam team>
__device__ int team_thread() {
  return static_cast<int>(team == RowTeam::Block ? threadIdx.x : threadIdx.x % warp_threads);
}
template <RowTeam team>
__device__ int team_threads() {
  return team == RowTeam::Block ? static_cast<int>(blockDim.x) : warp_threads;
}

// Threads of a whole-block team, a few accesses each.
inline int threads_for_row(int64_t accesses) {
  if (accesses <= 256) return 128;
  if (accesses <= 1024) return 256;
  return accesses <= 16384 ? 512 : 1024;
}

}  // namespace plimsoll::cuda
