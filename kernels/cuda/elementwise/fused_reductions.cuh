#pragma once

// What generated kernels of fused ops with reductions are written with. Threads combine what they have in an order that
// is the same every time.

#include "kernels/cuda/elementwise/fused_elements.cuh"

namespace plimsoll::cuda {

struct Sum {
  static __device__ float empty() { return 0.0f; }
  static __device__ float of(float a, float b) { return a + b; }
};
// NaN wins over any other number.
struct Largest {
  static __device__ float empty() { return -__int_as_float(0x7f800000); }
  static __device__ float of(float a, float b) { return b != b || a < b ? b : a; }
};

template <typename Kind, int n>
__device__ void clear(float (&totals)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) totals[k] = Kind::empty();
}

// For a block of `threads`, of which `across` are side by side: the threads of the first line get what all lines have.
template <typename Kind, int across, int threads, int n>
__device__ void combine_lines(float (&totals)[n]) {
  __shared__ float of_threads[n][threads];
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int lines = threads / across, kept; lines > 1; lines = kept) {
    kept = (lines + 1) / 2;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < n; ++k) of_threads[k][thread] = totals[k];
    __syncthreads();
    if (thread < (lines - kept) * across)
#pragma unroll
      for (int k = 0; k < n; ++k) totals[k] = Kind::of(totals[k], of_threads[k][thread + kept * across]);
  }
  __syncthreads();
}

// For a warp, of whose lanes `across` are side by side: those of the first line get what all whole lines have.
template <typename Kind, int across, int n>
__device__ void combine_lanes(float (&totals)[n]) {
  const int line = static_cast<int>(threadIdx.x % 32) / across;
#pragma unroll
  for (int lines = 32 / across, kept; lines > 1; lines = kept) {
    kept = (lines + 1) / 2;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float other = __shfl_down_sync(0xffffffffu, totals[k], kept * across);
      if (line < lines - kept) totals[k] = Kind::of(totals[k], other);
    }
  }
}

// Every thread of the `threads` of a warp that are side by side gets what they have.
template <typename Kind, int threads = 32>
__device__ float combine_warp(float total) {
#pragma unroll
  for (int apart = threads / 2; apart > 0; apart /= 2)
    total = Kind::of(total, __shfl_xor_sync(0xffffffffu, total, apart));
  return total;
}

// Every thread of the team gets what the team has: a warp or some of its threads, or a block of as many threads.
template <typename Kind, int threads>
__device__ float combine_team(float total) {
  total = combine_warp < Kind, threads < 32 ? threads : 32 > (total);
  if (threads <= 32) return total;
  __shared__ float of_warps[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
  if (lane == 0) of_warps[warp] = total;
  __syncthreads();
  return combine_warp<Kind>(lane < threads / 32 ? of_warps[lane] : Kind::empty());
}

// What `parts` parts of a total make, `apart` floats from each other, for lines of `across` threads. The threads of the
// first line get it.
template <typename Kind, int across, int threads>
__device__ float combine_parts(const float* first, int parts, int64_t apart, bool inside) {
  float total[1] = {Kind::empty()};
  if (inside)
#pragma unroll 4
    for (int part = static_cast<int>(threadIdx.x) / across; part < parts; part += threads / across)
      total[0] = Kind::of(total[0], first[part * apart]);
  combine_lines<Kind, across, threads>(total);
  return total[0];
}

}  // namespace plimsoll::cuda
