#include "kernels/cuda/norm/row_norm.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

// Serves layer_norm and rms_norm, x [rows, width]. x is read and y written once. Rows that 16-byte accesses divide
// evenly stay in registers, so that x is read once; others are read again from the cache. The variance is that of the
// differences from the mean, in a second pass over the registers.

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

constexpr int rows_per_block = 4;  // of a warp each

// Rows of up to `held` accesses a thread.
template <typename T, typename P, bool centered, RowTeam team, int held>
__global__ void __launch_bounds__(team == RowTeam::Warp ? rows_per_block * warp_threads : 1024)
    norm_in_registers_kernel(RowNormCall call) {
  constexpr int n = vector_length<T>;
  const int64_t row = team_row<team>();
  if (row >= call.rows) return;
  const int t = team_thread<team>(), threads = team_threads<team>();
  const int accesses = static_cast<int>(call.width / n);
  const T* x = static_cast<const T*>(call.x) + row * call.width;
  T* y = static_cast<T*>(call.y) + row * call.width;

  Vector<T, n> kept[held];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < held; ++k)
    if (t + k * threads < accesses) kept[k] = load_vector<n>(x + int64_t{n} * (t + k * threads));
#pragma unroll
  for (int k = 0; k < held; ++k)
    if (centered && t + k * threads < accesses)
#pragma unroll
      for (int i = 0; i < n; ++i) sum += widen(kept[k].at[i]);
  const float width = static_cast<float>(call.width);
  const float mean = centered ? team_sum<team>(sum) / width : 0.0f;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < held; ++k)
    if (t + k * threads < accesses)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float difference = widen(kept[k].at[i]) - mean;
        squares += difference * difference;
      }
  const float rstd = 1.0f / sqrtf(team_sum<team>(squares) / width + call.eps);
  store_statistics<centered>(call, row, t, {mean, rstd});

  const P *scale = static_cast<const P*>(call.scale), *bias = static_cast<const P*>(call.bias);
#pragma unroll
  for (int k = 0; k < held; ++k) {
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

template <bool centered>
cudaError_t norm(const RowNormCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  return with_f32_math_pair(call.x_type, call.parameter_type, [&]<typename T, typename P>(T*, P*) {
    const int64_t accesses = call.width / vector_length<T>;
    const auto rows = static_cast<unsigned>(call.rows);
    if (call.width % vector_length<T> != 0 || accesses > 4 * 1024) {
      norm_rereading_kernel<T, P, centered><<<rows, threads_for_row(call.width), 0, stream>>>(call);
    } else if (accesses <= 4 * warp_threads) {
      const auto blocks = static_cast<unsigned>(divide_up(call.rows, rows_per_block));
      norm_in_registers_kernel<T, P, centered, RowTeam::Warp, 4>
          <<<blocks, rows_per_block * warp_threads, 0, stream>>>(call);
    } else {
      const int64_t threads = std::min<int64_t>(divide_up(accesses, 2 * warp_threads) * warp_threads, 1024);
      norm_in_registers_kernel<T, P, centered, RowTeam::Block, 4>
          <<<rows, static_cast<unsigned>(threads), 0, stream>>>(call);
    }
  });
}

}  // namespace

cudaError_t layer_norm(const RowNormCall& call, cudaStream_t stream) { return norm<true>(call, stream); }
cudaError_t rms_norm(const RowNormCall& call, cudaStream_t stream) { return norm<false>(call, stream); }

}  // namespace plimsoll::cuda
