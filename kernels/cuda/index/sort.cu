#include "kernels/cuda/index/sort.cuh"

#include "kernels/cuda/common/element.cuh"

#include <utility>

// Sorts the indices of sort_indices, gather_grad, scatter_elements and scatter_nd. A pass of 8 bits reads the pairs
// twice and writes them once. Radix sort from the least significant digit (Satish, Harris and Garland 2009): a pass
// counts each tile's digits, turns the counts into places with a block a digit, and moves the pairs there. Pairs keep
// their order within a digit, so every launch gives the same permutation.

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

// The sum of the block's values of all threads before this one, and that of all; `block_threads` threads.
struct SumBefore {
  uint32_t before, total;
};
__device__ SumBefore sum_before(uint32_t value) {
  __shared__ uint32_t warp_sums[warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t up_to_here = sum_up_to_lane(value);
  if (lane == 31) warp_sums[warp] = up_to_here;
  __syncthreads();
  SumBefore sum{up_to_here - value, 0};
  for (int w = 0; w < warps; ++w) {
    if (w < warp) sum.before += warp_sums[w];
    sum.total += warp_sums[w];
  }
  __syncthreads();
  return sum;
}

// A block a digit: a tile's count becomes the sum of those of the tiles before it, and the sum of all goes behind the
// counts.
__global__ void __launch_bounds__(block_threads) places_kernel(uint32_t* counts, int64_t tiles) {
  uint32_t* of_digit = counts + blockIdx.x * tiles;
  uint32_t carry = 0;
  for (int64_t first = 0; first < tiles; first += block_threads) {
    const int64_t tile = first + threadIdx.x;
    const SumBefore sum = sum_before(tile < tiles ? of_digit[tile] : 0);
    if (tile < tiles) of_digit[tile] = carry + sum.before;
    carry += sum.total;
  }
  if (threadIdx.x == 0) counts[sort_digits * tiles + blockIdx.x] = carry;
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
  const uint32_t of_digit = arrays.counts[sort_digits * int64_t{gridDim.x} + threadIdx.x];
  uint32_t place = sum_before(of_digit).before + arrays.counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
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

int passes_below(int64_t key_bound) {
  int passes = 0;
  while (passes * digit_bits < 32 && (key_bound - 1) >> (passes * digit_bits) > 0) ++passes;
  return passes;
}

// What was sorted last is where the next pass reads.
void swap_sides(SortArrays& arrays) {
  std::swap(arrays.keys, arrays.other_keys);
  std::swap(arrays.positions, arrays.other_positions);
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
  arrays.counts = take<uint32_t>(workspace, sort_counts(n));
  return arrays;
}

SortArrays take_sort_arrays_into(uint32_t* keys, uint32_t* positions, char*& workspace, int64_t n, int64_t key_bound) {
  SortArrays arrays{keys, positions, take<uint32_t>(workspace, n), take<uint32_t>(workspace, n), nullptr};
  arrays.counts = take<uint32_t>(workspace, sort_counts(n));
  if (passes_below(key_bound) % 2 != 0) swap_sides(arrays);
  return arrays;
}

cudaError_t sort_pairs(SortArrays& arrays, int64_t n, int64_t key_bound, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const auto tiles = static_cast<unsigned>(divide_up(n, sort_tile));
  for (int pass = 0; pass < passes_below(key_bound); ++pass) {
    const int shift = pass * digit_bits;
    count_digits_kernel<<<tiles, block_threads, 0, stream>>>(arrays.counts, arrays.keys, n, shift);
    places_kernel<<<sort_digits, block_threads, 0, stream>>>(arrays.counts, tiles);
    move_pairs_kernel<<<tiles, block_threads, 0, stream>>>(arrays, n, shift);
    swap_sides(arrays);
  }
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
