#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/norm/row_norm.h"

// Serves layer_norm_grad and rms_norm_grad, x [rows, width]. x and dy are read and dx written once. With xhat = (x -
// mean) * rstd and g = dy * scale,
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dscale = sum(dy * xhat),  dbias = sum(dy),
// an RMS norm without avg(g). A row is the work of one warp or a few, which keep it in registers, and the columns' sums
// over all their rows beside it. The sums of a block's warps are added in shared memory, those of the blocks in a
// second, small kernel.

namespace plimsoll::cuda {
namespace {

struct Pair {
  float g, g_xhat;
  __device__ Pair operator+(const Pair& other) const { return {g + other.g, g_xhat + other.g_xhat}; }
};

constexpr int grad_threads = 256;
constexpr int grad_warps = grad_threads / warp_threads;

// Sums over a team of `warps` warps of the block, 8 or a divisor of it. Buffers alternate from call to call, so that
// one barrier is enough.
__device__ Pair team_pair_sum(Pair value, Pair (&of_warps)[2][grad_warps], int warps, int turn) {
  value = warp_reduce(value, Add());
  if (warps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, first = warp / warps * warps;
  if (threadIdx.x % warp_threads == 0) of_warps[turn][warp] = value;
  __syncthreads();
  Pair total{0, 0};
  for (int i = 0; i < warps; ++i) total = total + of_warps[turn][first + i];
  return total;
}

// The elements of an access as the words they came in. Left to itself the compiler takes 16-bit elements apart as soon
// as they are loaded, and spills for want of twice the registers.
template <typename T>
struct Packed {
  Vector<uint32_t, 4> words;

  __device__ void load(const T* from) { words = load_vector<4>(reinterpret_cast<const uint32_t*>(from)); }
  __device__ Vector<T, vector_length<T>> unpack() const {
    Vector<uint32_t, 4> copy = words;
    for (uint32_t& word : copy.at) asm volatile("" : "+r"(word));
    Vector<T, vector_length<T>> elements;
    memcpy(elements.at, copy.at, sizeof(elements));
    return elements;
  }
};

// Adds up the teams' sums of each column, in the order of the teams, and writes the block's.
template <int n, int held>
__device__ void write_partials(float* partials, const float (&sums)[held][n], int team_threads, int width) {
  __shared__ float of_threads[held * n][grad_threads];
#pragma unroll
  for (int k = 0; k < held; ++k)
#pragma unroll
    for (int i = 0; i < n; ++i) of_threads[k * n + i][threadIdx.x] = sums[k][i];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < width; column += grad_threads) {
    const int access = column / n, k = access / team_threads, t = access % team_threads;
    float sum = 0;
    for (int first = 0; first < grad_threads; first += team_threads) sum += of_threads[k * n + column % n][first + t];
    partials[int64_t{blockIdx.x} * width + column] = sum;
  }
  __syncthreads();  // of_threads is written again for the other parameter
}

// A row a team of `team_threads` threads, whole warps that divide the block; rows of up to `held` accesses a thread.
template <typename T, typename P, bool centered, int held>
__global__ void __launch_bounds__(grad_threads, 2)
    norm_grad_kernel(RowNormGradCall call, int team_threads, float* scale_partials, float* bias_partials) {
  constexpr int n = vector_length<T>;
  constexpr bool early_addend = held * n < 32;  // beyond that there are no registers for it
  __shared__ Pair of_warps[2][grad_warps];
  const int teams = grad_threads / team_threads, team = static_cast<int>(threadIdx.x) / team_threads;
  const int t = static_cast<int>(threadIdx.x) % team_threads, accesses = static_cast<int>(call.width) / n;
  const P* scale = static_cast<const P*>(call.scale);
  const float width = static_cast<float>(call.width), per_width = 1.0f / width;
  float scale_sums[held][n] = {}, bias_sums[held][n] = {};

  const int64_t step = int64_t{gridDim.x} * teams;
  int turn = 0;
  for (int64_t base = int64_t{blockIdx.x} * teams; base < call.rows; base += step, turn ^= 1) {
    const int64_t row = base + team;
    // A team without a row keeps the others' barriers.
    const int mine = row < call.rows ? accesses : 0;
    const int64_t first = row * call.width + int64_t{n} * t;
    const T *x_row = static_cast<const T*>(call.x) + first, *dy_row = static_cast<const T*>(call.dy) + first;
    const T* addend_row = static_cast<const T*>(call.addend) + first;
    // All are on their way before the first is waited for; an addend loaded as dx is made costs its latency for every
    // access.
    Packed<T> x[held], dy[held], added[held];
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (t + k * team_threads >= mine) break;
      x[k].load(x_row + n * k * team_threads);
      dy[k].load(dy_row + n * k * team_threads);
      if (early_addend && call.addend) added[k].load(addend_row + n * k * team_threads);
    }
    const float mean = centered && mine > 0 ? call.mean[row] : 0.0f, rstd = mine > 0 ? call.rstd[row] : 0.0f;
    Pair sum{0, 0};
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (t + k * team_threads >= mine) break;
      const Vector<T, n> xs = x[k].unpack(), dys = dy[k].unpack();
      Vector<P, n> factor;
      if (scale) factor = load_vector<n>(scale + n * (t + k * team_threads));
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float xhat = (widen(xs.at[i]) - mean) * rstd, d = widen(dys.at[i]);
        const float g = scale ? d * widen(factor.at[i]) : d;
        scale_sums[k][i] += d * xhat;
        bias_sums[k][i] += d;
        sum = sum + Pair{g, g * xhat};
      }
    }
    sum = team_pair_sum(sum, of_warps, team_threads / warp_threads, turn);
    const float average_g = centered ? sum.g * per_width : 0.0f, average_g_xhat = sum.g_xhat * per_width;
    T* dx_row = static_cast<T*>(call.dx) + first;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (t + k * team_threads >= mine) break;
      const Vector<T, n> xs = x[k].unpack(), dys = dy[k].unpack();
      Vector<P, n> factor;
      if (scale) factor = load_vector<n>(scale + n * (t + k * team_threads));
      float sums[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float xhat = (widen(xs.at[i]) - mean) * rstd, d = widen(dys.at[i]);
        const float g = scale ? d * widen(factor.at[i]) : d;
        sums[i] = rstd * (g - average_g - xhat * average_g_xhat);
      }
      if (call.addend) {
        if (!early_addend) added[k].load(addend_row + n * k * team_threads);
        const Vector<T, n> terms = added[k].unpack();
#pragma unroll
        for (int i = 0; i < n; ++i) sums[i] += widen(terms.at[i]);
      }
      Vector<T, n> dx;
#pragma unroll
      for (int i = 0; i < n; ++i) dx.at[i] = narrow<T>(sums[i]);
      store_vector(dx_row + n * k * team_threads, dx);
    }
  }
  if (scale_partials) write_partials<n>(scale_partials, scale_sums, team_threads, static_cast<int>(call.width));
  if (bias_partials) write_partials<n>(bias_partials, bias_sums, team_threads, static_cast<int>(call.width));
}

// Rows of the grid's second dimension: dscale, dbias.
struct ParameterSums {
  const float* partials;
  void* out;
};
template <typename P>
__global__ void __launch_bounds__(combine_threads)
    parameter_grads_kernel(ParameterSums first, ParameterSums second, int64_t count, int64_t width, int across) {
  const ParameterSums sums = blockIdx.y == 0 ? first : second;
  combine_partials(sums.partials, count, width, across, Add(), 0.0f,
                   [&](int64_t column, float total) { static_cast<P*>(sums.out)[column] = narrow<P>(total); });
}

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
    Vector<T, n> added{};
    if (addend) added = load_vector<n>(addend + at);
    for (int i = 0; i < n; ++i) {
      const float g = widen(grads.at[i]) * (scale ? widen(scale[at + i]) : 1.0f);
      const float xhat = (widen(values.at[i]) - mean) * rstd;
      values.at[i] = narrow<T>(rstd * (g - average_g - xhat * average_g_xhat) + widen(added.at[i]));
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
void launch_first_stage(const RowNormGradCall& call, float* scale_partials, float* bias_partials, cudaStream_t stream) {
  constexpr int n = vector_length<T>, max_held = 4;
  const auto blocks = static_cast<unsigned>(row_norm_partials(call.rows));
  const int64_t accesses = call.width / n;
  if (call.width % n != 0 || accesses > max_held * grad_threads) {
    norm_dx_rereading_kernel<T, P, centered>
        <<<static_cast<unsigned>(call.rows), threads_for_row(call.width), 0, stream>>>(call);
    const dim3 grid(static_cast<unsigned>(divide_up(call.width, 256)), blocks);
    if (scale_partials || bias_partials)
      column_partials_kernel<T, centered><<<grid, 256, 0, stream>>>(call, scale_partials, bias_partials);
    return;
  }
  int team_threads = warp_threads;
  while (team_threads < grad_threads && team_threads * 3 < accesses) team_threads *= 2;
  if (accesses <= 3 * team_threads)
    norm_grad_kernel<T, P, centered, 3>
        <<<blocks, grad_threads, 0, stream>>>(call, team_threads, scale_partials, bias_partials);
  else
    norm_grad_kernel<T, P, centered, 4>
        <<<blocks, grad_threads, 0, stream>>>(call, team_threads, scale_partials, bias_partials);
}

template <bool centered>
cudaError_t norm_grad(const RowNormGradCall& call, cudaStream_t stream) {
  if (call.width == 0) return cudaSuccess;
  return with_f32_math_pair(call.x_type, call.parameter_type, [&]<typename T, typename P>(T*, P*) {
    const int64_t count = call.rows > 0 ? row_norm_partials(call.rows) : 0;
    float* scale_partials = call.dscale ? call.workspace : nullptr;
    float* bias_partials = call.dbias ? call.workspace + (call.dscale ? count * call.width : 0) : nullptr;
    if (call.rows > 0) launch_first_stage<T, P, centered>(call, scale_partials, bias_partials, stream);
    const ParameterSums scale{scale_partials, call.dscale}, bias{bias_partials, call.dbias};
    if (call.dscale || call.dbias) {
      const dim3 grid(combining_blocks(count, call.width), call.dscale && call.dbias ? 2 : 1);
      parameter_grads_kernel<P><<<grid, combine_threads, 0, stream>>>(call.dscale ? scale : bias, bias, count,
                                                                      call.width, combined_columns(count));
    }
  });
}

}  // namespace

cudaError_t layer_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<true>(call, stream); }
cudaError_t rms_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<false>(call, stream); }

}  // namespace plimsoll::cuda
