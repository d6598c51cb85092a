#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/norm/row_norm.h"

// Serves layer_norm_grad and rms_norm_grad, x [rows, width]. x and dy are read and dx written once. With xhat = (x -
// mean) * rstd and g = dy * scale,
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dscale = sum(dy * xhat),  dbias = sum(dy),
// an RMS norm without avg(g). One block on each multiprocessor takes rows by turns, each the work of a team of a warp
// or a few. The rows after the one that is computed are on their way to shared memory meanwhile: every thread copies
// what it reads itself, so that teams wait for nothing but their own sums. The columns' sums over all rows of a team
// stay in its registers. Those of a block's teams are added in shared memory, those of the blocks in a second, small
// kernel, which begins as soon as there is room.

namespace plimsoll::cuda {
namespace {

struct Pair {
  float g, g_xhat;
  __device__ Pair operator+(const Pair& other) const { return {g + other.g, g_xhat + other.g_xhat}; }
};

constexpr int grad_threads = 512, grad_warps = grad_threads / warp_threads;

// Sums over a team of whole warps. Buffers alternate from call to call, so that one barrier is enough.
__device__ Pair team_pair_sum(Pair value, Pair (&of_warps)[2][grad_warps], int team, int team_threads, int turn) {
  value = warp_reduce(value, Add());
  if (team_threads == warp_threads) return value;
  const int warps = team_threads / warp_threads, first = team * warps;
  if (threadIdx.x % warp_threads == 0) of_warps[turn][threadIdx.x / warp_threads] = value;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "r"(team_threads) : "memory");
  Pair total{0, 0};
  for (int i = 0; i < warps; ++i) total = total + of_warps[turn][first + i];
  return total;
}

constexpr int max_stages = 4,
              max_held = 3;  // of accesses of a row, a thread takes `held`, of which it may lack the last

// Waits until no more than the newest `pending` groups are still under way.
__device__ void wait_for_all_but(int pending) {
  static_assert(max_stages == 4);
  if (pending == 0) return wait_for_copies<0>();
  if (pending == 1) return wait_for_copies<1>();
  if (pending == 2) return wait_for_copies<2>();
  wait_for_copies<3>();
}

template <typename T>
__device__ Packed<T, vector_length<T>> words_of(const uint4* slot) {
  return load_packed<vector_length<T>>(reinterpret_cast<const T*>(slot));
}

// A block's sums of the columns are words of four, in shared memory [held * n / 4, grad_threads], and in memory
// [n / 4, accesses] for each block: neighbouring threads have neighbouring accesses, so that they meet neither the same
// bank nor the same sector. Each instruction of this end runs once, and waits for its code to come: loops stay short.
template <int held, int n>
__device__ void keep_sums(float4* of_threads, const float (&sums)[held][n]) {
#pragma unroll
  for (int k = 0; k < held; ++k)
#pragma unroll
    for (int i = 0; i < n; i += 4)
      of_threads[(k * n + i) / 4 * grad_threads + static_cast<int>(threadIdx.x)] =
          make_float4(sums[k][i], sums[k][i + 1], sums[k][i + 2], sums[k][i + 3]);
}
// Adds up the teams' sums in the order of the teams.
template <int n>
__device__ void write_partials(const float4* of_threads, float* partials, int team_threads, int accesses) {
  const int words = n / 4 * accesses;
#pragma unroll 1
  for (int word = static_cast<int>(threadIdx.x); word < words; word += grad_threads) {
    const int i = word / accesses, access = word - i * accesses, k = access / team_threads;
    const float4* const of_first_team = of_threads + (k * (n / 4) + i) * grad_threads + access - k * team_threads;
    float4 sum{};
#pragma unroll 2
    for (int first = 0; first < grad_threads; first += team_threads) {
      const float4 of_team = of_first_team[first];
      sum = make_float4(sum.x + of_team.x, sum.y + of_team.y, sum.z + of_team.z, sum.w + of_team.w);
    }
    reinterpret_cast<float4*>(partials)[int64_t{blockIdx.x} * words + word] = sum;
  }
}

// A row a team of `team_threads` threads, whole warps that divide the block. The stages of the ring each have a row's
// accesses, tensor by tensor, each thread's beside its neighbours'.
template <typename T, typename P, bool centered, int held>
__global__ void __launch_bounds__(grad_threads)
    norm_grad_kernel(RowNormGradCall call, int team_threads, int stages, float* scale_partials, float* bias_partials) {
  constexpr int n = vector_length<T>;
  // One multiply-add each, instead of a difference before it: its rounding is far below that of 16-bit elements.
  constexpr bool is_short = sizeof(T) == 2;
  constexpr auto place = [](int tensor, int k) { return (tensor * held + k) * grad_threads; };
  extern __shared__ uint4 ring[];
  __shared__ Pair of_warps[2][grad_warps];
  const int teams = grad_threads / team_threads, team = static_cast<int>(threadIdx.x) / team_threads;
  const int t = static_cast<int>(threadIdx.x) % team_threads, stride = n * team_threads;
  const int accesses = static_cast<int>(call.width) / n;
  const bool has_last = t + (held - 1) * team_threads < accesses;
  const bool has_addend = call.addend != nullptr;
  let_next_launch_begin();
  const int stage_size = place(has_addend ? 3 : 2, 0);
  const float per_width = 1.0f / static_cast<float>(call.width);

  Packed<P, n> factors[held];
#pragma unroll
  for (int k = 0; k < held; ++k) {
    Vector<P, n> elements;
#pragma unroll
    for (int i = 0; i < n; ++i) elements.at[i] = narrow<P>(1.0f);
    if (call.scale && (k + 1 < held || has_last))
      elements = load_vector<n>(static_cast<const P*>(call.scale) + n * t + k * stride);
    memcpy(factors[k].word, elements.at, sizeof(elements));
  }
  float scale_sums[held][n] = {}, bias_sums[held][n] = {};

  const int64_t step = int64_t{gridDim.x} * teams;
  const int64_t first_row = int64_t{blockIdx.x} * teams + team, first = first_row * call.width + n * t;
  int64_t row_ahead = first_row;
  const T *x_ahead = static_cast<const T*>(call.x) + first, *dy_ahead = static_cast<const T*>(call.dy) + first;
  const T* addend_ahead = static_cast<const T*>(call.addend) + first;
  uint4* const slots = ring + threadIdx.x;
  const auto fetch = [&](uint4* slot) {
    if (row_ahead < call.rows) {
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (k + 1 == held && !has_last) break;
        copy_async(slot + place(0, k), x_ahead + k * stride, true);
        copy_async(slot + place(1, k), dy_ahead + k * stride, true);
        if (has_addend) copy_async(slot + place(2, k), addend_ahead + k * stride, true);
      }
    }
    commit_copies();
    row_ahead += step;
    x_ahead += step * call.width;
    dy_ahead += step * call.width;
    addend_ahead += step * call.width;
  };
  for (int stage = 0; stage + 1 < stages; ++stage) fetch(slots + stage * stage_size);
  float next_mean = 0, next_rstd = 0;
  const auto read_statistics = [&](int64_t row) {
    if (row >= call.rows) return;
    if (centered) next_mean = call.mean[row];
    next_rstd = call.rstd[row];
  };
  read_statistics(first_row);

  T* dx = static_cast<T*>(call.dx) + first;
  int stage = 0, turn = 0;
  for (int64_t row = first_row; row < call.rows; row += step, turn ^= 1, dx += step * call.width) {
    fetch(slots + (stage == 0 ? stages - 1 : stage - 1) * stage_size);
    const uint4* slot = slots + stage * stage_size;
    const float mean = next_mean, rstd = next_rstd, shift = -mean * rstd;
    read_statistics(row + step);
    wait_for_all_but(stages - 1);
    Pair even{0, 0}, odd{0, 0};  // two chains of additions wait less than one
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (k + 1 == held && !has_last) break;
      const auto xs = words_of<T>(slot + place(0, k));
      const auto dys = words_of<T>(slot + place(1, k));
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float xhat = is_short ? xs[i] * rstd + shift : (xs[i] - mean) * rstd, d = dys[i], d_xhat = d * xhat;
        scale_sums[k][i] += d_xhat;
        bias_sums[k][i] += d;
        Pair& sum = i % 2 == 0 ? even : odd;
        sum = {sum.g + d * factors[k][i], sum.g_xhat + d_xhat * factors[k][i]};
      }
    }
    const Pair sum = team_pair_sum(even + odd, of_warps, team, team_threads, turn);
    // The row is read again from shared memory: there are no registers to keep it in.
    asm volatile("" ::: "memory");
    // dx = rstd * g - rstd * avg(g) - (x - mean) * rstd^2 * avg(g * xhat)
    const float slope = -rstd * rstd * sum.g_xhat * per_width;
    const float offset = (centered ? -rstd * sum.g * per_width : 0.0f) - (is_short ? mean * slope : 0.0f);
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (k + 1 == held && !has_last) break;
      const auto xs = words_of<T>(slot + place(0, k));
      const auto dys = words_of<T>(slot + place(1, k));
      float sums[n];
#pragma unroll
      for (int i = 0; i < n; ++i)
        sums[i] = (is_short ? xs[i] : xs[i] - mean) * slope + (dys[i] * factors[k][i] * rstd + offset);
      if (has_addend) {
        const auto terms = words_of<T>(slot + place(2, k));
#pragma unroll
        for (int i = 0; i < n; ++i) sums[i] += terms[i];
      }
      store_packed(dx + k * stride, pack<T>(sums));
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  __syncthreads();  // the sums lie over the ring, whose copies have all been waited for
  float4 *scale_of_threads = reinterpret_cast<float4*>(ring),
         *bias_of_threads = scale_of_threads + held * n / 4 * grad_threads;
  if (scale_partials) keep_sums(scale_of_threads, scale_sums);
  if (bias_partials) keep_sums(bias_of_threads, bias_sums);
  __syncthreads();
  if (scale_partials) write_partials<n>(scale_of_threads, scale_partials, team_threads, accesses);
  if (bias_partials) write_partials<n>(bias_of_threads, bias_partials, team_threads, accesses);
}

// Rows of the grid's second dimension: dscale, dbias. Partials of a block are in the order of the columns, or, from
// `accesses` of a row, words of four as write_partials has them.
struct ParameterSums {
  const float* partials;
  void* out;
};
template <typename P>
__global__ void __launch_bounds__(combine_threads)
    parameter_grads_kernel(ParameterSums first, ParameterSums second, int64_t count, int64_t width, int64_t accesses,
                           int across) {
  const ParameterSums sums = blockIdx.y == 0 ? first : second;
  wait_for_launch_before();
  combine_partials(sums.partials, count, width, across, Add(), 0.0f, [&](int64_t place, float total) {
    const int64_t word = place / 4, i = accesses > 0 ? word / accesses : 0;
    const int64_t column = accesses > 0 ? (word - i * accesses) * (width / accesses) + 4 * i + place % 4 : place;
    static_cast<P*>(sums.out)[column] = narrow<P>(total);
  });
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

// What the card's multiprocessors have for norm_grad_kernel.
struct Multiprocessors {
  int count = 1, shared_bytes = 48 << 10;  // of a block

  Multiprocessors() {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return;
    (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    (void)cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
};

// Threads of a team, and accesses that each of them takes.
struct RowTeams {
  int threads = 0, held = 1;

  // The fewest in all, so that few have nothing to do, and then the smallest teams.
  explicit RowTeams(int64_t accesses) {
    int64_t fewest = INT64_MAX;
    for (int each = max_held; each > 0; --each) {
      int needed = warp_threads;
      while (needed <= grad_threads && int64_t{needed} * each < accesses) needed *= 2;
      if (needed > grad_threads || int64_t{needed} * each >= fewest) continue;
      fewest = int64_t{needed} * each;
      threads = needed;
      held = each;
    }
  }
  bool fit() const { return threads > 0; }
};

struct Partials {
  float *scale, *bias;
  int64_t count, width, accesses;  // accesses: 0 where partials are in the order of the columns
};

template <typename T, typename P, bool centered, int held>
cudaError_t launch_teams(const RowNormGradCall& call, int team_threads, const Partials& partials, int shared_bytes,
                         cudaStream_t stream) {
  constexpr int static_bytes = 1 << 10, sums_bytes = 2 * held * vector_length<T> * grad_threads * sizeof(float);
  const auto kernel = norm_grad_kernel<T, P, centered, held>;
  const int stage_bytes = (call.addend ? 3 : 2) * held * grad_threads * static_cast<int>(vector_bytes);
  const int stages = std::clamp((shared_bytes - static_bytes) / stage_bytes, 1, max_stages);
  const int bytes = std::max(stages * stage_bytes, sums_bytes);
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(partials.count), grad_threads, static_cast<size_t>(bytes), stream>>>(
      call, team_threads, stages, partials.scale, partials.bias);
  return cudaGetLastError();
}

template <typename T, typename P, bool centered>
cudaError_t launch_first_stage(const RowNormGradCall& call, const RowTeams& teams, const Partials& partials,
                               int shared_bytes, cudaStream_t stream) {
  if (!teams.fit()) {
    norm_dx_rereading_kernel<T, P, centered>
        <<<static_cast<unsigned>(call.rows), threads_for_row(call.width), 0, stream>>>(call);
    const dim3 grid(static_cast<unsigned>(divide_up(call.width, 256)), static_cast<unsigned>(partials.count));
    if (partials.scale || partials.bias)
      column_partials_kernel<T, centered><<<grid, 256, 0, stream>>>(call, partials.scale, partials.bias);
    return cudaGetLastError();
  }
  const auto launch = [&]<int held>(std::integral_constant<int, held>) {
    return launch_teams<T, P, centered, held>(call, teams.threads, partials, shared_bytes, stream);
  };
  if (teams.held == 1) return launch(std::integral_constant<int, 1>());
  if (teams.held == 2) return launch(std::integral_constant<int, 2>());
  static_assert(max_held == 3);
  return launch(std::integral_constant<int, 3>());
}

template <typename P>
cudaError_t launch_parameter_grads(const RowNormGradCall& call, const Partials& partials, cudaStream_t stream) {
  if (!call.dscale && !call.dbias) return cudaSuccess;
  const ParameterSums scale{partials.scale, call.dscale}, bias{partials.bias, call.dbias};
  const dim3 grid(combining_blocks(partials.count, call.width), call.dscale && call.dbias ? 2 : 1);
  const auto kernel = parameter_grads_kernel<P>;
  const ParameterSums& first = call.dscale ? scale : bias;
  const int across = combined_columns(partials.count);
  if (call.rows > 0)
    return launch_early(kernel, grid, combine_threads, stream, first, bias, partials.count, partials.width,
                        partials.accesses, across);
  kernel<<<grid, combine_threads, 0, stream>>>(first, bias, 0, partials.width, partials.accesses, across);
  return cudaGetLastError();
}

template <bool centered>
cudaError_t norm_grad(const RowNormGradCall& call, cudaStream_t stream) {
  if (call.width == 0) return cudaSuccess;
  const Multiprocessors card;
  return with_f32_math_pair(call.x_type, call.parameter_type, [&]<typename T, typename P>(T*, P*) {
    const RowTeams teams(call.width % vector_length<T> == 0 ? call.width / vector_length<T> : INT64_MAX);
    const int64_t most = call.rows > 0 ? row_norm_partials(call.rows) : 0, count = std::min<int64_t>(most, card.count);
    const Partials partials{.scale = call.dscale ? call.workspace : nullptr,
                            .bias = call.dbias ? call.workspace + (call.dscale ? count * call.width : 0) : nullptr,
                            .count = count,
                            .width = call.width,
                            .accesses = teams.fit() ? call.width / vector_length<T> : 0};
    if (call.rows > 0)
      if (cudaError_t error = launch_first_stage<T, P, centered>(call, teams, partials, card.shared_bytes, stream);
          error != cudaSuccess)
        return error;
    return launch_parameter_grads<P>(call, partials, stream);
  });
}

}  // namespace

cudaError_t layer_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<true>(call, stream); }
cudaError_t rms_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<false>(call, stream); }

}  // namespace plimsoll::cuda
