#pragma once

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/norm/lanes.cuh"
#include "kernels/cuda/norm/row_norm.h"

// The gradient of a norm of short rows, such as those of a head's q and k: an access of each lane is a row or less, so
// that several rows share a warp. What every thread reads next is on its way to registers while it computes. The
// columns' sums stay in registers over all rows of a thread; at the end the lanes and the warps of a block add theirs
// up in a fixed order.

namespace plimsoll::cuda {

// One block on each multiprocessor, whose threads have half of the registers that a thread can have.
constexpr int threads_of_lanes = 512, rows_of_lanes = 2;

template <int lanes, int n>
struct LaneSums {
  static constexpr int warps = threads_of_lanes / warp_threads;
  float of_warps[warps][lanes * n];  // lanes behind each other

  // The sums of a block's columns, of which each thread has n. Every thread of the block takes part.
  __device__ void write(float (&sums)[n], float* partials, int width) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int distance = lanes; distance < warp_threads; distance *= 2)
        sums[i] += __shfl_xor_sync(whole_warp, sums[i], distance);
      if (lane < lanes) of_warps[warp][i * lanes + lane] = sums[i];
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < width; column += threads_of_lanes) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) sum += of_warps[w][column % n * lanes + column / n];
      partials[int64_t{blockIdx.x} * width + column] = sum;
    }
    __syncthreads();  // the next sums lie over these
  }
};

// Two rows of some lanes, and what belongs to them. Where there is none, everything is zero.
template <typename T>
struct LaneRows {
  static constexpr int n = vector_length<T>;
  Packed<T, n> x[rows_of_lanes], dy[rows_of_lanes];
  float mean[rows_of_lanes], rstd[rows_of_lanes];

  template <bool centered>
  __device__ void load(const RowNormGradCall& call, int64_t first_row, int beside, int column) {
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const int64_t row = first_row + r * beside, at = row * call.width + column;
      x[r] = dy[r] = {};
      mean[r] = rstd[r] = 0;
      if (row >= call.rows) continue;
      if (centered) mean[r] = call.mean[row];
      rstd[r] = call.rstd[row];
      if (column >= call.width) continue;
      x[r] = load_packed<n>(static_cast<const T*>(call.x) + at);
      dy[r] = load_packed<n>(static_cast<const T*>(call.dy) + at);
    }
  }
};

template <typename T, typename P, bool centered, int lanes>
__global__ void __launch_bounds__(threads_of_lanes)
    norm_grad_by_lanes_kernel(RowNormGradCall call, float* scale_partials, float* bias_partials) {
  constexpr int n = vector_length<T>, beside = warp_threads / lanes, rows_of_warp = beside * rows_of_lanes;
  // One multiply-add each, instead of a difference before it: its rounding is far below that of 16-bit elements.
  constexpr bool is_short = sizeof(T) == 2;
  __shared__ LaneSums<lanes, n> lane_sums;
  let_next_launch_begin();
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, column = n * (lane % lanes);
  const bool has_access = column < call.width;
  const float per_width = 1.0f / static_cast<float>(call.width);
  const Packed<P, n> factor =
      load_parameters<n>(has_access ? static_cast<const P*>(call.scale) : nullptr, column, 1.0f);
  float scale_sums[n] = {}, bias_sums[n] = {};

  const int64_t warps = int64_t{gridDim.x} * (threads_of_lanes / warp_threads), step = warps * rows_of_warp;
  const int64_t warp = (int64_t{blockIdx.x} * threads_of_lanes + threadIdx.x) / warp_threads;
  LaneRows<T> next;
  next.template load<centered>(call, warp * rows_of_warp + lane / lanes, beside, column);
  // A warp's lanes go on together.
  for (int64_t warp_row = warp * rows_of_warp; warp_row < call.rows; warp_row += step) {
    LaneRows<T> now = next;
    const int64_t first_row = warp_row + lane / lanes;
    next.template load<centered>(call, first_row + step, beside, column);
    float g[rows_of_lanes] = {}, g_xhat[rows_of_lanes] = {};
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const float mean = now.mean[r], rstd = now.rstd[r], shift = -mean * rstd;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float x = now.x[r][i], d = now.dy[r][i];
        const float xhat = is_short ? x * rstd + shift : (x - mean) * rstd, d_xhat = d * xhat;
        scale_sums[i] += d_xhat;
        g_xhat[r] += d_xhat * factor[i];
        if (centered) bias_sums[i] += d, g[r] += d * factor[i];
      }
    }
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      if (centered) g[r] = sum_of_lanes<lanes>(g[r]);
      g_xhat[r] = sum_of_lanes<lanes>(g_xhat[r]);
    }
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const int64_t row = first_row + r * beside, at = row * call.width + column;
      if (row >= call.rows || !has_access) continue;
      // dx = rstd * g - rstd * avg(g) - (x - mean) * rstd^2 * avg(g * xhat)
      const float mean = now.mean[r], rstd = now.rstd[r], slope = -rstd * rstd * g_xhat[r] * per_width;
      const float offset = (centered ? -rstd * g[r] * per_width : 0.0f) - (is_short ? mean * slope : 0.0f);
      float made[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float x = now.x[r][i];
        made[i] = (is_short ? x : x - mean) * slope + (now.dy[r][i] * factor[i] * rstd + offset);
      }
      if (call.addend) {
        const Packed<T, n> terms = load_packed<n>(static_cast<const T*>(call.addend) + at);
#pragma unroll
        for (int i = 0; i < n; ++i) made[i] += terms[i];
      }
      store_packed(static_cast<T*>(call.dx) + at, pack<T>(made));
    }
  }
  if (scale_partials) lane_sums.write(scale_sums, scale_partials, static_cast<int>(call.width));
  if (bias_partials) lane_sums.write(bias_sums, bias_partials, static_cast<int>(call.width));
}

// Rows of up to a warp's accesses, by so many blocks. Partials are in the order of the columns.
template <typename T, typename P, bool centered>
cudaError_t launch_norm_grad_by_lanes(const RowNormGradCall& call, unsigned blocks, float* scale_partials,
                                      float* bias_partials, cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, threads_of_lanes, 0, stream>>>(call, scale_partials, bias_partials);
    return cudaGetLastError();
  };
  const int64_t accesses = call.width / vector_length<T>;
  if (accesses <= 8) return launch(norm_grad_by_lanes_kernel<T, P, centered, 8>);
  if (accesses <= 16) return launch(norm_grad_by_lanes_kernel<T, P, centered, 16>);
  return launch(norm_grad_by_lanes_kernel<T, P, centered, warp_threads>);
}

}  // namespace plimsoll::cuda
