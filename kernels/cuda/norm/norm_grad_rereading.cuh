#pragma once

// The gradient of norms of rows of any width: dx by blocks that read a row twice, and sums of the columns by a thread a
// column.

#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/norm/row_norm.h"

namespace plimsoll::cuda {

// A row's sums of g and of g * xhat.
struct RowSums {
  float g, g_xhat;

  __device__ RowSums operator+(const RowSums& other) const { return {g + other.g, g_xhat + other.g_xhat}; }
};

// dx of any row, by a block that reads the row twice.
template <typename T, typename P, bool centered>
__global__ void __launch_bounds__(1024) norm_dx_rereading_kernel(RowNormGradCall call) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = static_cast<const T*>(call.x) + row * call.width;
  const T* dy = static_cast<const T*>(call.dy) + row * call.width;
  const T* addend = call.addend ? static_cast<const T*>(call.addend) + row * call.width : nullptr;
  T* dx = static_cast<T*>(call.dx) + row * call.width;
  const P* scale = static_cast<const P*>(call.scale);
  const float mean = centered ? call.mean[row] : 0.0f, rstd = call.rstd[row];
  RowSums sum{};
  for_row(x, call.width, t, threads, [&](int64_t at, const auto& values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> grads = load_vector<n>(dy + at);
    for (int i = 0; i < n; ++i) {
      const float g = widen(grads.at[i]) * (scale ? widen(scale[at + i]) : 1.0f);
      sum = sum + RowSums{g, g * (widen(values.at[i]) - mean) * rstd};
    }
  });
  sum = block_reduce(sum, Add(), RowSums{});
  const float width = static_cast<float>(call.width);
  const float average_g = centered ? sum.g / width : 0.0f, average_g_xhat = sum.g_xhat / width;
  for_row(x, call.width, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> grads = load_vector<n>(dy + at);
    Vector<T, n> added{};
    if (addend) added = load_vector<n>(addend + at);
    for (int i = 0; i < n; ++i) {
      const float g = widen(grads.at[i]) * (scale ? widen(scale[at + i]) : 1.0f);
      const float xhat = (widen(values.at[i]) - mean) * rstd;
      values.at[i] = narrow<T>(rstd * (g - average_g - xhat * average_g_xhat) + widen(added.at[i]));
    }
    store_vector(dx + at, values);
    if (!call.dropped) return;
    for (int i = 0; i < n; ++i) {
      const int64_t place = row * call.width + at + i;
      const Draws<1> draws(call.stream, call.dropout.first_draw + place);
      values.at[i] =
          narrow<T>(draws.keep(0, widen(values.at[i]), call.dropout.dropped, static_cast<float>(call.dropout.factor)));
    }
    store_vector(static_cast<T*>(call.dropped) + row * call.width + at, values);
  });
}

// Partial sums of the columns of any width, a thread a column.
template <typename T, bool centered>
__global__ void column_partials_kernel(RowNormGradCall call, float* scale_partials, float* bias_partials) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= call.width) return;
  const T *x = static_cast<const T*>(call.x) + column, *dy = static_cast<const T*>(call.dy) + column;
  float scale_sum = 0, bias_sum = 0;
  for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
    const float mean = centered ? call.mean[row] : 0.0f, d = widen(dy[row * call.width]);
    scale_sum += d * (widen(x[row * call.width]) - mean) * call.rstd[row];
    bias_sum += d;
  }
  if (scale_partials) scale_partials[blockIdx.y * call.width + column] = scale_sum;
  if (bias_partials) bias_partials[blockIdx.y * call.width + column] = bias_sum;
}

}  // namespace plimsoll::cuda
