#include "kernels/cuda/index/sort.cuh"

#include "kernels/cuda/common/element.cuh"

#include <utility>

// Sorts the indices of gather_grad, scatter_elements and scatter_nd. A pass of 8 bits reads the pairs twice and writes
// them once. Radix sort from the least significant digit (Satish, Harris and Garland 2009): a pass counts each tile's
// digits, turns the counts into places, and moves the pairs there. Pairs keep their order within a digit, so every
// launch gives the same permutation.

namespace plimsoll::cuda {
namespace {

constexpr int digit_bits = 8, warps = block_threads / 32, rounds = sort_tile / block_threads;
__device__ uint32_t digit_of(uint32_t key, int shift) { return (key >> shift) % sort_digits; }

// counts[digit][tile]
__global__ void __launch_bounds__(block_threads)
    count_digits_kernel(uint32_t* counts, const uint32_t* keys, int64_t n, int shift) {
  __shared__ uint32_t tile_counts[sort_digits];
  tile_counts[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const int64_t i = blockIdx.x * sort_tile + round * block_threads + threadIdx.x;
    if (i < n) atomicAdd(&tile_counts[digit_of(keys[i], shift)], 1u);
  }
  __syncthreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = tile_counts[threadIdx.x];
}

__device__ uint32_t sum_up_to_lane(uint32_t value) {
  const int lane = threadIdx.x % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t before = __shfl_up_sync(whole_warp, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// counts[i] becomes the sum of all before it; one block of 1024 threads.
__global__ void __launch_bounds__(1024) places_kernel(uint32_t* counts, int64_t n) {
  __shared__ uint32_t warp_sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t carry = 0;
  for (int64_t first = 0; first < n; first += 1024) {
    const int64_t i = first + threadIdx.x;
    const uint32_t value = i < n ? counts[i] : 0, up_to_here = sum_up_to_lane(value);
    if (lane == 31) warp_sums[warp] = up_to_here;
    __syncthreads();
    if (warp == 0) warp_sums[lane] = sum_up_to_lane(warp_sums[lane]);
    __syncthreads();
    const uint32_t before = carry + (warp > 0 ? warp_sums[warp - 1] : 0);
    if (i < n) counts[i] = before + up_to_here - value;
    carry += warp_sums[31];
    __syncthreads();
  }
}

// Each warp ranks a run of consecutive pairs, 32 at a time; lanes of one digit find each other by a vote.
__global__ void __launch_bounds__(block_threads) move_pairs_kernel(SortArrays arrays, int64_t n, int shift) {
  __shared__ uint32_t places[warps][sort_digits];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int w = 0; w < warps; ++w) places[w][threadIdx.x] = 0;
  __syncthreads();

  const int64_t first = blockIdx.x * sort_tile + warp * (sort_tile / warps) + lane;
  uint32_t keys[rounds], ranks[rounds];
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const int64_t i = first + round * 32;
    keys[round] = i < n ? arrays.keys[i] : 0;
    const uint32_t digit = i < n ? digit_of(keys[round], shift) : sort_digits;
    const unsigned peers = __match_any_sync(whole_warp, digit);
    const int leader = __ffs(static_cast<int>(peers)) - 1;
    uint32_t earlier = 0;
    if (lane == leader && i < n) {
      earlier = places[warp][digit];
      places[warp][digit] = earlier + static_cast<uint32_t>(__popc(peers));
    }
    earlier = __shfl_sync(whole_warp, earlier, leader);
    ranks[round] = earlier + static_cast<uint32_t>(__popc(peers & ((1u << lane) - 1)));
    __syncwarp();
  }
  __syncthreads();

  // From counts to places: thread t turns digit t.
  uint32_t place = arrays.counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  for (int w = 0; w < warps; ++w) {
    const uint32_t count = places[w][threadIdx.x];
    places[w][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();

#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const int64_t i = first + round * 32;
    if (i >= n) continue;
    const uint32_t to = places[warp][digit_of(keys[round], shift)] + ranks[round];
    arrays.other_keys[to] = keys[round];
    arrays.other_positions[to] = arrays.positions[i];
  }
}

template <typename T>
T* take(char*& workspace, int64_t n) {
  T* taken = reinterpret_cast<T*>(workspace);
  workspace += array_bytes(n * static_cast<int64_t>(sizeof(T)));
  return taken;
}

}  // namespace

SortArrays take_sort_arrays(char*& workspace, int64_t n) {
  SortArrays arrays;
  for (uint32_t** array : {&arrays.keys, &arrays.positions, &arrays.other_keys, &arrays.other_positions})
    *array = take<uint32_t>(workspace, n);
  arrays.counts = take<uint32_t>(workspace, sort_digits * divide_up(n, sort_tile));
  return arrays;
}

cudaError_t sort_pairs(SortArrays& arrays, int64_t n, int64_t key_bound, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const auto tiles = static_cast<unsigned>(divide_up(n, sort_tile));
  for (int shift = 0; shift < 32 && (key_bound - 1) >> shift > 0; shift += digit_bits) {
    count_digits_kernel<<<tiles, block_threads, 0, stream>>>(arrays.counts, arrays.keys, n, shift);
    places_kernel<<<1, 1024, 0, stream>>>(arrays.counts, sort_digits * tiles);
    move_pairs_kernel<<<tiles, block_threads, 0, stream>>>(arrays, n, shift);
    std::swap(arrays.keys, arrays.other_keys);
    std::swap(arrays.positions, arrays.other_positions);
  }
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
