#include "kernels/cuda/partial_sums.cuh"
#include "kernels/cuda/row_norm.h"

#include <algorithm>

// With xhat = (x - mean) * rstd and g = dy * scale,
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dscale = sum(dy * xhat),  dbias = sum(dy),
// an RMS norm without avg(g). Each block walks over rows of its own and keeps the columns' sums in registers; the
// blocks' sums are added in a second, small kernel.

namespace plimsoll::cuda {
namespace {

struct Pair {
  float g, g_xhat;
  __device__ Pair operator+(const Pair& other) const { return {g + other.g, g_xhat + other.g_xhat}; }
};

// Sums over the x dimension of the block, whole warps, for each y. Buffers alternate from call to call, so that one
// barrier is enough.
__device__ Pair group_sum(Pair value, Pair (&of_warps)[2][warp_threads], int turn) {
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  const int first = static_cast<int>(threadIdx.y) * warps, lane = static_cast<int>(threadIdx.x) % warp_threads;
  value = warp_reduce(value, Add());
  if (lane == 0) of_warps[turn][first + static_cast<int>(threadIdx.x) / warp_threads] = value;
  __syncthreads();
  value = lane < warps ? of_warps[turn][first + lane] : Pair{0, 0};
  return warp_reduce(value, Add());
}

// Adds up the groups' sums of each column, in the order of the groups, and writes the block's.
template <int n, int held>
__device__ void write_partials(float* partials, float (&sums)[held][n], int accesses) {
  extern __shared__ float totals[];
  const int groups = static_cast<int>(blockDim.y), group = static_cast<int>(threadIdx.y);
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float* mine = partials + int64_t{blockIdx.x} * accesses * n;
  for (int turn = 0; turn < groups; ++turn) {
    if (groups > 1) __syncthreads();
    if (turn != group) continue;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const int column = (t + k * threads) * n;
      if (t + k * threads >= accesses) break;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float sum = sums[k][i] + (turn > 0 ? totals[column + i] : 0.0f);
        if (turn + 1 < groups)
          totals[column + i] = sum;
        else
          mine[column + i] = sum;
      }
    }
  }
  if (groups > 1) __syncthreads();
}

template <typename T, int held>
struct GradRow {
  Vector<T, vector_length<T>> x[held], dy[held];
  float mean, rstd;

  template <bool centered>
  __device__ void load(const RowNormGradCall& call, int64_t row) {
    constexpr int n = vector_length<T>;
    const int accesses = static_cast<int>(call.width / n);
    const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const T* x_row = static_cast<const T*>(call.x) + row * call.width;
    const T* dy_row = static_cast<const T*>(call.dy) + row * call.width;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (t + k * threads >= accesses) break;
      x[k] = load_vector<n>(x_row + int64_t{n} * (t + k * threads));
      dy[k] = load_vector<n>(dy_row + int64_t{n} * (t + k * threads));
    }
    mean = centered ? call.mean[row] : 0.0f;
    rstd = call.rstd[row];
  }
};

constexpr int grad_threads = 512;

// Blocks of blockDim.y groups of blockDim.x threads, a row a group, the next row being loaded while one is worked on.
// Rows of up to `held` accesses a thread.
template <typename T, typename P, bool centered, int held>
__global__ void __launch_bounds__(grad_threads, held == 1 ? 2 : 1)
    norm_grad_kernel(RowNormGradCall call, float* scale_partials, float* bias_partials) {
  constexpr int n = vector_length<T>;
  __shared__ Pair of_warps[2][warp_threads];
  const int accesses = static_cast<int>(call.width / n);
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const P* scale = static_cast<const P*>(call.scale);
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  const float width = static_cast<float>(call.width);
  float scale_sums[held][n] = {}, bias_sums[held][n] = {};

  GradRow<T, held> next;
  const int64_t first = int64_t{blockIdx.x} * blockDim.y;
  if (first + threadIdx.y < call.rows) next.template load<centered>(call, first + threadIdx.y);
  int turn = 0;
  for (int64_t base = first; base < call.rows; base += step, turn ^= 1) {
    const int64_t row = base + threadIdx.y;
    const bool has_row = row < call.rows;
    const GradRow<T, held> now = next;
    if (row + step < call.rows) next.template load<centered>(call, row + step);
    Pair sum{0, 0};
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (!has_row || t + k * threads >= accesses) break;
      Vector<P, n> factor;
      if (scale) factor = load_vector<n>(scale + int64_t{n} * (t + k * threads));
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float xhat = (widen(now.x[k].at[i]) - now.mean) * now.rstd, dy = widen(now.dy[k].at[i]);
        const float g = scale ? dy * widen(factor.at[i]) : dy;
        scale_sums[k][i] += dy * xhat;
        bias_sums[k][i] += dy;
        sum = sum + Pair{g, g * xhat};
      }
    }
    sum = group_sum(sum, of_warps, turn);
    const float average_g = centered ? sum.g / width : 0.0f, average_g_xhat = sum.g_xhat / width;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (!has_row || t + k * threads >= accesses) break;
      const int64_t column = int64_t{n} * (t + k * threads);
      Vector<P, n> factor;
      if (scale) factor = load_vector<n>(scale + column);
      Vector<T, n> dx;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float xhat = (widen(now.x[k].at[i]) - now.mean) * now.rstd, dy = widen(now.dy[k].at[i]);
        const float g = scale ? dy * widen(factor.at[i]) : dy;
        dx.at[i] = narrow<T>(now.rstd * (g - average_g - xhat * average_g_xhat));
      }
      store_vector(static_cast<T*>(call.dx) + row * call.width + column, dx);
    }
  }
  if (scale_partials) write_partials<n>(scale_partials, scale_sums, accesses);
  if (bias_partials) write_partials<n>(bias_partials, bias_sums, accesses);
}

// dx of any row, by a block that reads the row twice.
template <typename T, typename P, bool centered>
__global__ void __launch_bounds__(1024) norm_dx_rereading_kernel(RowNormGradCall call) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = static_cast<const T*>(call.x) + row * call.width;
  const T* dy = static_cast<const T*>(call.dy) + row * call.width;
  T* dx = static_cast<T*>(call.dx) + row * call.width;
  const P* scale = static_cast<const P*>(call.scale);
  const float mean = centered ? call.mean[row] : 0.0f, rstd = call.rstd[row];
  Pair sum{0, 0};
  for_row(x, call.width, t, threads, [&](int64_t at, const auto& values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> grads = load_vector<n>(dy + at);
    for (int i = 0; i < n; ++i) {
      const float g = widen(grads.at[i]) * (scale ? widen(scale[at + i]) : 1.0f);
      sum = sum + Pair{g, g * (widen(values.at[i]) - mean) * rstd};
    }
  });
  sum = block_reduce(sum, Add(), Pair{0, 0});
  const float width = static_cast<float>(call.width);
  const float average_g = centered ? sum.g / width : 0.0f, average_g_xhat = sum.g_xhat / width;
  for_row(x, call.width, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> grads = load_vector<n>(dy + at);
    for (int i = 0; i < n; ++i) {
      const float g = widen(grads.at[i]) * (scale ? widen(scale[at + i]) : 1.0f);
      const float xhat = (widen(values.at[i]) - mean) * rstd;
      values.at[i] = narrow<T>(rstd * (g - average_g - xhat * average_g_xhat));
    }
    store_vector(dx + at, values);
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

template <typename T, typename P, bool centered>
void launch_partials(const RowNormGradCall& call, float* scale_partials, float* bias_partials, cudaStream_t stream) {
  constexpr int n = vector_length<T>;
  const auto blocks = static_cast<unsigned>(row_norm_partials(call.rows));
  const int64_t accesses = call.width / n;
  if (call.width % n != 0 || accesses > 2 * grad_threads) {
    norm_dx_rereading_kernel<T, P, centered>
        <<<static_cast<unsigned>(call.rows), threads_for_row(call.width), 0, stream>>>(call);
    const dim3 grid(static_cast<unsigned>(divide_up(call.width, 256)), blocks);
    if (scale_partials || bias_partials)
      column_partials_kernel<T, centered><<<grid, 256, 0, stream>>>(call, scale_partials, bias_partials);
    return;
  }
  const int held = accesses > grad_threads ? 2 : 1;
  const auto threads = static_cast<unsigned>(divide_up(accesses, held * warp_threads) * warp_threads);
  const unsigned groups = std::max(grad_threads / threads, 1u);
  const size_t shared_bytes = groups > 1 ? static_cast<size_t>(call.width) * sizeof(float) : 0;
  const dim3 block(threads, groups);
  if (held == 1)
    norm_grad_kernel<T, P, centered, 1><<<blocks, block, shared_bytes, stream>>>(call, scale_partials, bias_partials);
  else
    norm_grad_kernel<T, P, centered, 2><<<blocks, block, shared_bytes, stream>>>(call, scale_partials, bias_partials);
}

template <bool centered>
cudaError_t norm_grad(const RowNormGradCall& call, cudaStream_t stream) {
  if (call.width == 0) return cudaSuccess;
  return with_f32_math_pair(call.x_type, call.parameter_type, [&](auto* x, auto* parameter) {
    using T = std::remove_pointer_t<decltype(x)>;
    using P = std::remove_pointer_t<decltype(parameter)>;
    const int64_t count = call.rows > 0 ? row_norm_partials(call.rows) : 0;
    float* next = call.workspace;
    float* scale_partials = call.dscale ? next : nullptr;
    if (call.dscale) next += count * call.width;
    float* bias_partials = call.dbias ? next : nullptr;
    if (call.rows > 0) launch_partials<T, P, centered>(call, scale_partials, bias_partials, stream);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && call.dscale)
      error = add_partials(static_cast<P*>(call.dscale), scale_partials, count, call.width, stream);
    if (error == cudaSuccess && call.dbias)
      error = add_partials(static_cast<P*>(call.dbias), bias_partials, count, call.width, stream);
    return error;
  });
}

}  // namespace

cudaError_t layer_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<true>(call, stream); }
cudaError_t rms_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<false>(call, stream); }

}  // namespace plimsoll::cuda
