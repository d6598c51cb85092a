#include "kernels/cuda/norm/row_norm.h"

#include "kernels/cuda/norm/lanes.cuh"

#include <algorithm>

// Serves layer_norm and rms_norm, x [rows, width]. x is read and y written once. Rows that 16-byte accesses divide
// evenly stay in registers, so that x is read once, and so do rows of up to seven accesses a lane that halves and
// quarters of these divide; others are read again from the cache. Short rows share a warp, and
// a warp has several rows on their way at once. The variance is that of the differences from the mean, in a second pass
// over the registers.

namespace plimsoll::cuda {
namespace {

template <typename P>
__device__ float parameter_at(const P* parameters, int64_t i, float otherwise) {
  return parameters ? widen(parameters[i]) : otherwise;
}

template <bool centered>
__device__ void store_statistics(const RowNormCall& call, int64_t row, int thread, RowStatistics s) {
  if (thread != 0) return;
  if (centered) call.mean[row] = s.mean;
  call.rstd[row] = s.rstd;
}

constexpr int threads_of_warps = 128;
constexpr int most_by_lanes = 7;

// Rows of some lanes of a warp with up to `held` accesses each, of which they may lack the last, or all but four. Every
// lane takes part in `at_once` rows. Parameters of three and four accesses, and of the shortest rows, are on their way
// beside the rows; with others, registers that are left to more rows gain more.
template <typename T, typename P, bool centered, int n, int lanes, int held, int at_once>
__global__ void __launch_bounds__(threads_of_warps) norm_by_lanes_kernel(RowNormCall call) {
  constexpr int beside = warp_threads / lanes, always = held <= 4 ? held - 1 : 4;
  constexpr bool ahead = lanes == 8 || held == 3 || held == 4;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, t = lane % lanes;
  const int accesses = static_cast<int>(call.width / n);
  const int64_t warp = (int64_t{blockIdx.x} * threads_of_warps + threadIdx.x) / warp_threads;
  const int64_t first_row = warp * (beside * at_once) + lane / lanes, first = first_row * call.width + n * t;
  const int64_t row_step = beside * call.width;
  const auto is_row = [&](int r) { return first_row + r * beside < call.rows; };
  const auto has_access = [&](int k) { return k < always || t + k * lanes < accesses; };

  const T* x = static_cast<const T*>(call.x) + first;
  Packed<T, n> kept[at_once][held];
#pragma unroll
  for (int r = 0; r < at_once; ++r)
#pragma unroll
    for (int k = 0; k < held; ++k) {
      kept[r][k] = {};
      if (is_row(r) && has_access(k)) kept[r][k] = load_packed<n>(x + r * row_step + k * (lanes * n));
    }
  const P *scale = static_cast<const P*>(call.scale), *bias = static_cast<const P*>(call.bias);
  Packed<P, n> factor[held], offset[held];
#pragma unroll
  for (int k = 0; ahead && k < held; ++k) {
    const int column = n * (t + k * lanes);
    factor[k] = load_parameters<n>(has_access(k) ? scale : nullptr, column, 1.0f);
    if (centered) offset[k] = load_parameters<n>(has_access(k) ? bias : nullptr, column, 0.0f);
  }
  // All lanes of a warp add up, those beyond the last row as well.
  const float width = static_cast<float>(call.width);
  RowStatistics of[at_once];
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    float sum = 0, squares = 0;
    if (centered)
#pragma unroll
      for (int k = 0; k < held; ++k)
#pragma unroll
        for (int i = 0; i < n; ++i) sum += kept[r][k][i];
    of[r].mean = centered ? sum_of_lanes<lanes>(sum) / width : 0.0f;
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (has_access(k))
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float difference = kept[r][k][i] - of[r].mean;
          squares += difference * difference;
        }
    of[r].rstd = 1.0f / sqrtf(sum_of_lanes<lanes>(squares) / width + call.eps);
  }
#pragma unroll
  for (int r = 0; r < at_once; ++r)
    if (is_row(r)) store_statistics<centered>(call, first_row + r * beside, t, of[r]);

  T* y = static_cast<T*>(call.y) + first;
#pragma unroll
  for (int k = 0; k < held; ++k) {
    if (!has_access(k)) break;
    if (!ahead) {
      factor[k] = load_parameters<n>(scale, n * (t + k * lanes), 1.0f);
      if (centered) offset[k] = load_parameters<n>(bias, n * (t + k * lanes), 0.0f);
    }
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (!is_row(r)) break;
      float made[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        made[i] = (kept[r][k][i] - of[r].mean) * of[r].rstd * factor[k][i];
        if (centered) made[i] += offset[k][i];
      }
      store_packed(y + r * row_step + k * (lanes * n), pack<T>(made));
    }
  }
}

constexpr int held_by_block = 4;

// Rows of a block with up to so many accesses a thread.
template <typename T, typename P, bool centered>
__global__ void __launch_bounds__(1024) norm_by_blocks_kernel(RowNormCall call) {
  constexpr int n = vector_length<T>;
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int accesses = static_cast<int>(call.width / n);
  const T* x = static_cast<const T*>(call.x) + row * call.width;
  T* y = static_cast<T*>(call.y) + row * call.width;

  Vector<T, n> kept[held_by_block];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < held_by_block; ++k)
    if (t + k * threads < accesses) kept[k] = load_vector<n>(x + int64_t{n} * (t + k * threads));
#pragma unroll
  for (int k = 0; k < held_by_block; ++k)
    if (centered && t + k * threads < accesses)
#pragma unroll
      for (int i = 0; i < n; ++i) sum += widen(kept[k].at[i]);
  const float width = static_cast<float>(call.width);
  const float mean = centered ? block_reduce(sum, Add(), 0.0f) / width : 0.0f;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < held_by_block; ++k)
    if (t + k * threads < accesses)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float difference = widen(kept[k].at[i]) - mean;
        squares += difference * difference;
      }
  const float rstd = 1.0f / sqrtf(block_reduce(squares, Add(), 0.0f) / width + call.eps);
  store_statistics<centered>(call, row, t, {mean, rstd});

  const P *scale = static_cast<const P*>(call.scale), *bias = static_cast<const P*>(call.bias);
#pragma unroll
  for (int k = 0; k < held_by_block; ++k) {
    if (t + k * threads >= accesses) break;
    const int64_t first = int64_t{n} * (t + k * threads);
    Vector<P, n> factor, offset;
    if (scale) factor = load_vector<n>(scale + first);
    if (bias) offset = load_vector<n>(bias + first);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      float value = (widen(kept[k].at[i]) - mean) * rstd;
      if (scale) value *= widen(factor.at[i]);
      if (bias) value += widen(offset.at[i]);
      kept[k].at[i] = narrow<T>(value);
    }
    store_vector(y + first, kept[k]);
  }
}

// Any row, by a block that reads it up to three times.
template <typename T, typename P, bool centered>
__global__ void __launch_bounds__(1024) norm_rereading_kernel(RowNormCall call) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = static_cast<const T*>(call.x) + row * call.width;
  T* y = static_cast<T*>(call.y) + row * call.width;
  const auto [mean, rstd] = block_statistics<centered>(static_cast<float>(call.width), call.eps, [&](auto visit) {
    for_row(x, call.width, t, threads, [&](int64_t, const auto& values) { visit(values); });
  });
  store_statistics<centered>(call, row, t, {mean, rstd});
  const P *scale = static_cast<const P*>(call.scale), *bias = static_cast<const P*>(call.bias);
  for_row(x, call.width, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
    for (int i = 0; i < n; ++i) {
      const float normal = (widen(values.at[i]) - mean) * rstd;
      values.at[i] = narrow<T>(normal * parameter_at(scale, at + i, 1.0f) + parameter_at(bias, at + i, 0.0f));
    }
    store_vector(y + at, values);
  });
}

template <typename T, typename P, bool centered, int n, int lanes, int held, int at_once>
void launch_lanes(const RowNormCall& call, cudaStream_t stream) {
  constexpr int64_t rows_per_block = threads_of_warps / lanes * at_once;
  norm_by_lanes_kernel<T, P, centered, n, lanes, held, at_once>
      <<<blocks_for(call.rows, rows_per_block), threads_of_warps, 0, stream>>>(call);
}

// Rows of up to most_by_lanes accesses of n elements for each lane of a warp.
template <typename T, typename P, bool centered, int n>
void launch_warps(const RowNormCall& call, cudaStream_t stream) {
  const int64_t accesses = call.width / n;
  if (accesses <= warp_threads) return launch_lanes<T, P, centered, n, warp_threads, 1, 4>(call, stream);
  if (accesses <= 2 * warp_threads) return launch_lanes<T, P, centered, n, warp_threads, 2, 2>(call, stream);
  if (accesses <= 3 * warp_threads) return launch_lanes<T, P, centered, n, warp_threads, 3, 2>(call, stream);
  if (accesses <= 4 * warp_threads) return launch_lanes<T, P, centered, n, warp_threads, 4, 1>(call, stream);
  launch_lanes<T, P, centered, n, warp_threads, most_by_lanes, 1>(call, stream);
}

template <bool centered>
cudaError_t norm(const RowNormCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  return with_f32_math_pair(call.x_type, call.parameter_type, [&]<typename T, typename P>(T*, P*) {
    constexpr int n = vector_length<T>;
    const int64_t accesses = call.width / n;
    const auto rows = static_cast<unsigned>(call.rows);
    if (call.width % n != 0) {
      const bool by_halves = call.width % (n / 2) == 0, by_quarters = call.width % (n / 4) == 0;
      constexpr int64_t most = most_by_lanes * warp_threads;
      if (by_halves && call.width <= most * (n / 2))
        launch_warps<T, P, centered, n / 2>(call, stream);
      else if (by_quarters && call.width <= most * (n / 4))
        launch_warps<T, P, centered, n / 4>(call, stream);
      else
        norm_rereading_kernel<T, P, centered><<<rows, threads_for_row(call.width), 0, stream>>>(call);
    } else if (accesses > held_by_block * 1024) {
      norm_rereading_kernel<T, P, centered><<<rows, threads_for_row(call.width), 0, stream>>>(call);
    } else if (accesses > most_by_lanes * warp_threads) {
      const int64_t threads = std::min<int64_t>(divide_up(accesses, 2 * warp_threads) * warp_threads, 1024);
      norm_by_blocks_kernel<T, P, centered><<<rows, static_cast<unsigned>(threads), 0, stream>>>(call);
    } else if (accesses <= 8) {
      launch_lanes<T, P, centered, n, 8, 1, 4>(call, stream);
    } else if (accesses <= 16) {
      launch_lanes<T, P, centered, n, 16, 1, 4>(call, stream);
    } else {
      launch_warps<T, P, centered, n>(call, stream);
    }
  });
}

}  // namespace

cudaError_t layer_norm(const RowNormCall& call, cudaStream_t stream) { return norm<true>(call, stream); }
cudaError_t rms_norm(const RowNormCall& call, cudaStream_t stream) { return norm<false>(call, stream); }

}  // namespace plimsoll::cuda
