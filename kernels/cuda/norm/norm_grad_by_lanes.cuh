#pragma once

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/norm/lanes.cuh"
#include "kernels/cuda/norm/row_norm.h"

// The gradient of a norm of short rows, such as those of a head's q and k: an access of each lane is a row or less, so
// that several rows share a warp. Rows that 16-byte accesses do not divide have up to two shorter ones of each lane.
// What every thread reads next is on its way to registers while it computes. The columns' sums stay in registers over
// all rows of a thread; at the end the lanes and the warps of a block add theirs up in a fixed order.

namespace plimsoll::cuda {

// One block on each multiprocessor, whose threads have half of the registers that a thread can have.
constexpr int threads_of_lanes = 512, rows_of_lanes = 2;

template <int lanes, int n, int held>
struct LaneSums {
  static constexpr int warps = threads_of_lanes / warp_threads;
  float of_warps[warps][held * lanes * n];  // accesses, elements and lanes behind each other

  // The sums of a block's columns, of which each thread has held * n. Every thread of the block takes part.
  __device__ void write(float (&sums)[held][n], float* partials, int width) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
#pragma unroll
    for (int k = 0; k < held; ++k)
#pragma unroll
      for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int distance = lanes; distance < warp_threads; distance *= 2)
          sums[k][i] += __shfl_xor_sync(whole_warp, sums[k][i], distance);
        if (lane < lanes) of_warps[warp][(k * n + i) * lanes + lane] = sums[k][i];
      }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < width; column += threads_of_lanes) {
      const int access = column / n, k = access / lanes;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) sum += of_warps[w][(k * n + column % n) * lanes + access - k * lanes];
      partials[int64_t{blockIdx.x} * width + column] = sum;
    }
    __syncthreads();  // the next sums lie over these
  }
};

// Two rows of some lanes, and what belongs to them. Where there is none, everything is zero.
template <typename T, int n, int held>
struct LaneRows {
  Packed<T, n> x[rows_of_lanes][held], dy[rows_of_lanes][held];
  float mean[rows_of_lanes], rstd[rows_of_lanes];

  // Accesses lie `stride` elements apart.
  template <bool centered>
  __device__ void load(const RowNormGradCall& call, int64_t first_row, int beside, int column, int stride) {
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const int64_t row = first_row + r * beside, at = row * call.width + column;
      mean[r] = rstd[r] = 0;
#pragma unroll
      for (int k = 0; k < held; ++k) x[r][k] = dy[r][k] = {};
      if (row >= call.rows) continue;
      if (centered) mean[r] = call.mean[row];
      rstd[r] = call.rstd[row];
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (column + k * stride >= call.width) continue;
        x[r][k] = load_packed<n>(static_cast<const T*>(call.x) + at + k * stride);
        dy[r][k] = load_packed<n>(static_cast<const T*>(call.dy) + at + k * stride);
      }
    }
  }
};

template <typename T, typename P, bool centered, int n, int lanes, int held>
__global__ void __launch_bounds__(threads_of_lanes)
    norm_grad_by_lanes_kernel(RowNormGradCall call, float* scale_partials, float* bias_partials) {
  constexpr int beside = warp_threads / lanes, rows_of_warp = beside * rows_of_lanes, stride = lanes * n;
  // One multiply-add each, instead of a difference before it: its rounding is far below that of 16-bit elements.
  constexpr bool is_short = sizeof(T) == 2;
  __shared__ LaneSums<lanes, n, held> lane_sums;
  let_next_launch_begin();
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, column = n * (lane % lanes);
  const auto has_access = [&](int k) { return column + k * stride < call.width; };
  const float per_width = 1.0f / static_cast<float>(call.width);
  Packed<P, n> factor[held];
#pragma unroll
  for (int k = 0; k < held; ++k)
    factor[k] =
        load_parameters<n>(has_access(k) ? static_cast<const P*>(call.scale) : nullptr, column + k * stride, 1.0f);
  float scale_sums[held][n] = {}, bias_sums[held][n] = {};

  const int64_t warps = int64_t{gridDim.x} * (threads_of_lanes / warp_threads), step = warps * rows_of_warp;
  const int64_t warp = (int64_t{blockIdx.x} * threads_of_lanes + threadIdx.x) / warp_threads;
  LaneRows<T, n, held> next;
  next.template load<centered>(call, warp * rows_of_warp + lane / lanes, beside, column, stride);
  // A warp's lanes go on together.
  for (int64_t warp_row = warp * rows_of_warp; warp_row < call.rows; warp_row += step) {
    const LaneRows<T, n, held> now = next;
    const int64_t first_row = warp_row + lane / lanes;
    next.template load<centered>(call, first_row + step, beside, column, stride);
    float g[rows_of_lanes] = {}, g_xhat[rows_of_lanes] = {};
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const float mean = now.mean[r], rstd = now.rstd[r], shift = -mean * rstd;
#pragma unroll
      for (int k = 0; k < held; ++k)
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float x = now.x[r][k][i], d = now.dy[r][k][i];
          const float xhat = is_short ? x * rstd + shift : (x - mean) * rstd, d_xhat = d * xhat;
          scale_sums[k][i] += d_xhat;
          g_xhat[r] += d_xhat * factor[k][i];
          if (centered) bias_sums[k][i] += d, g[r] += d * factor[k][i];
        }
    }
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      if (centered) g[r] = sum_of_lanes<lanes>(g[r]);
      g_xhat[r] = sum_of_lanes<lanes>(g_xhat[r]);
    }
#pragma unroll
    for (int r = 0; r < rows_of_lanes; ++r) {
      const int64_t row = first_row + r * beside;
      if (row >= call.rows) continue;
      // dx = rstd * g - rstd * avg(g) - (x - mean) * rstd^2 * avg(g * xhat)
      const float mean = now.mean[r], rstd = now.rstd[r], slope = -rstd * rstd * g_xhat[r] * per_width;
      const float offset = (centered ? -rstd * g[r] * per_width : 0.0f) - (is_short ? mean * slope : 0.0f);
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (!has_access(k)) continue;
        const int64_t at = row * call.width + column + k * stride;
        float made[n];
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float x = now.x[r][k][i];
          made[i] = (is_short ? x : x - mean) * slope + (now.dy[r][k][i] * factor[k][i] * rstd + offset);
        }
        if (call.addend) {
          const Packed<T, n> terms = load_packed<n>(static_cast<const T*>(call.addend) + at);
#pragma unroll
          for (int i = 0; i < n; ++i) made[i] += terms[i];
        }
        store_packed(static_cast<T*>(call.dx) + at, pack<T>(made));
      }
    }
  }
  if (scale_partials) lane_sums.write(scale_sums, scale_partials, static_cast<int>(call.width));
  if (bias_partials) lane_sums.write(bias_sums, bias_partials, static_cast<int>(call.width));
}

constexpr int most_of_lane = 2;  // accesses of rows that whole ones do not divide

// The elements of an access by which rows of the width go by lanes; 0 where they do not. An addend comes late there,
// for which more than 16 lanes of whole accesses wait.
template <typename T>
int access_of_lanes(const RowNormGradCall& call) {
  constexpr int whole = vector_length<T>;
  if (call.dropped) return 0;
  if (call.width % whole == 0) return call.width <= whole * (call.addend ? warp_threads / 2 : warp_threads) ? whole : 0;
  for (int n : {whole / 2, whole / 4})
    if (call.width % n == 0 && call.width <= n * warp_threads * most_of_lane) return n;
  return 0;
}

// By so many blocks. Partials are in the order of the columns.
template <typename T, typename P, bool centered>
cudaError_t launch_norm_grad_by_lanes(const RowNormGradCall& call, unsigned blocks, float* scale_partials,
                                      float* bias_partials, cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, threads_of_lanes, 0, stream>>>(call, scale_partials, bias_partials);
    return cudaGetLastError();
  };
  constexpr int whole = vector_length<T>;
  const int n = access_of_lanes<T>(call);
  const int64_t accesses = call.width / n;
  const auto by_warps = [&](auto length) {
    if (accesses <= warp_threads) return launch(norm_grad_by_lanes_kernel<T, P, centered, length(), warp_threads, 1>);
    return launch(norm_grad_by_lanes_kernel<T, P, centered, length(), warp_threads, most_of_lane>);
  };
  if (n == whole / 2) return by_warps(std::integral_constant<int, whole / 2>());
  if (n == whole / 4) return by_warps(std::integral_constant<int, whole / 4>());
  if (accesses <= 8) return launch(norm_grad_by_lanes_kernel<T, P, centered, whole, 8, 1>);
  if (accesses <= 16) return launch(norm_grad_by_lanes_kernel<T, P, centered, whole, 16, 1>);
  return launch(norm_grad_by_lanes_kernel<T, P, centered, whole, warp_threads, 1>);
}

}  // namespace plimsoll::cuda
