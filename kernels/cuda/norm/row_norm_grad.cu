#include "kernels/cuda/common/blocks_together.h"
#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/cooperative_launch.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/norm/norm_grad_by_lanes.cuh"
#include "kernels/cuda/norm/norm_grad_rereading.cuh"
#include "kernels/cuda/norm/team_columns.cuh"

// Serves layer_norm_grad and rms_norm_grad, x [rows, width]. x and dy are read and dx written once. With xhat = (x -
// mean) * rstd and g = dy * scale,
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dscale = sum(dy * xhat),  dbias = sum(dy),
// an RMS norm without avg(g). Where dx is wanted behind a dropout as well, that is written beside it. Rows of up to a
// warp's accesses have a kernel of their own, which knows no dropout. Of other ones one block on each multiprocessor
// takes rows by turns, a team of a warp or a few one or two of them at once. The rows after those that are computed are
// on their way to shared memory meanwhile: every thread copies what it reads itself, so that teams wait for nothing but
// their own sums. The columns' sums over all rows of a team stay in its registers. Those of a block's teams are added
// in shared memory; then blocks wait for each other, and each adds up all blocks' sums of some columns. The other
// kernels leave that to a second launch.

namespace plimsoll::cuda {
namespace {

// Of several rows, so that their reductions run side by side.
template <int count>
struct RowPairs {
  struct {
    float g, g_xhat;
  } of[count];

  __device__ RowPairs operator+(const RowPairs& other) const {
    RowPairs sum;
#pragma unroll
    for (int r = 0; r < count; ++r) sum.of[r] = {of[r].g + other.of[r].g, of[r].g_xhat + other.of[r].g_xhat};
    return sum;
  }
};

// How a row is shared: a thread of a team takes `held` accesses, of which it may lack the last, of `at_once` rows.
// Three accesses of two rows need more registers than 512 threads have.
template <int held_, int at_once_, int threads_ = held_ == 3 && at_once_ == 2 ? 384 : 512>
struct RowShares {
  static constexpr int held = held_, at_once = at_once_, threads = threads_;
  static constexpr int warps = threads / warp_threads;
};
constexpr int max_threads = 512;
// Threads of a team that takes two rows at once: what a team of few threads waits for is its own sums.
constexpr int widest_pair = 128;
// Shared memory of a block of such teams: with a third stage of rows 768 columns take 25.3 us on an H200, with
// two 24.2.
constexpr int most_shared_bytes = 200 << 10;

// Sums over a team of whole warps. Buffers alternate from call to call, so that one barrier is enough.
template <typename Sums, int warps>
__device__ Sums sums_of_team(Sums sums, Sums (&of_warps)[2][warps], int team, int team_threads, int turn) {
  sums = warp_reduce(sums, Add());
  if (team_threads == warp_threads) return sums;
  const int team_warps = team_threads / warp_threads, first = team * team_warps;
  if (threadIdx.x % warp_threads == 0) of_warps[turn][threadIdx.x / warp_threads] = sums;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "r"(team_threads) : "memory");
  sums = of_warps[turn][first];
  for (int i = 1; i < team_warps; ++i) sums = sums + of_warps[turn][first + i];
  return sums;
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

// The stages of the ring each have the accesses of a team's next rows, tensor by tensor, each thread's beside its
// neighbours'.
template <typename T, typename P, bool centered, bool drops, typename Shares>
__global__ void __launch_bounds__(Shares::threads)
    norm_grad_kernel(RowNormGradCall call, int team_threads, int stages, float* scale_partials, float* bias_partials) {
  constexpr int n = vector_length<T>, held = Shares::held, at_once = Shares::at_once, threads = Shares::threads;
  // One multiply-add each, instead of a difference before it: its rounding is far below that of 16-bit elements.
  constexpr bool is_short = sizeof(T) == 2;
  constexpr auto place = [](int tensor, int r, int k) { return ((tensor * at_once + r) * held + k) * threads; };
  extern __shared__ uint4 ring[];
  using Sums = RowPairs<at_once>;
  __shared__ Sums of_warps[2][Shares::warps];
  const int teams = threads / team_threads, team = static_cast<int>(threadIdx.x) / team_threads;
  const int t = static_cast<int>(threadIdx.x) % team_threads, stride = n * team_threads;
  const int accesses = static_cast<int>(call.width) / n;
  const bool has_last = t + (held - 1) * team_threads < accesses, has_addend = call.addend != nullptr;
  const int stage_size = place(has_addend ? 3 : 2, 0, 0);
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

  const int64_t step = int64_t{gridDim.x} * teams, row_step = step * call.width;
  // A last turn that is not for all teams has some of each block.
  const int64_t first_row = int64_t{team} * gridDim.x + blockIdx.x, first = first_row * call.width + n * t;
  int64_t row_ahead = first_row;
  const T *x_ahead = static_cast<const T*>(call.x) + first, *dy_ahead = static_cast<const T*>(call.dy) + first;
  const T* addend_ahead = static_cast<const T*>(call.addend) + first;
  uint4* const slots = ring + threadIdx.x;
  const auto fetch = [&](uint4* slot) {
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (row_ahead < call.rows) {
#pragma unroll
        for (int k = 0; k < held; ++k) {
          if (k + 1 == held && !has_last) break;
          copy_async(slot + place(0, r, k), x_ahead + k * stride, true);
          copy_async(slot + place(1, r, k), dy_ahead + k * stride, true);
          if (has_addend) copy_async(slot + place(2, r, k), addend_ahead + k * stride, true);
        }
      }
      row_ahead += step;
      x_ahead += row_step;
      dy_ahead += row_step;
      addend_ahead += row_step;
    }
    commit_copies();
  };
  for (int stage = 0; stage + 1 < stages; ++stage) fetch(slots + stage * stage_size);
  float next_mean[at_once] = {}, next_rstd[at_once] = {};
  const auto read_statistics = [&](int64_t row) {
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (row + r * step >= call.rows) break;
      if (centered) next_mean[r] = call.mean[row + r * step];
      next_rstd[r] = call.rstd[row + r * step];
    }
  };
  read_statistics(first_row);

  T* dx = static_cast<T*>(call.dx) + first;
  int stage = 0, turn = 0;
  for (int64_t row = first_row; row < call.rows; row += at_once * step, turn ^= 1, dx += at_once * row_step) {
    fetch(slots + (stage == 0 ? stages - 1 : stage - 1) * stage_size);
    const uint4* slot = slots + stage * stage_size;
    float mean[at_once], rstd[at_once];
#pragma unroll
    for (int r = 0; r < at_once; ++r) mean[r] = next_mean[r], rstd[r] = next_rstd[r];
    read_statistics(row + at_once * step);
    wait_for_all_but(stages - 1);
    Sums sums{}, odd{};  // two chains of additions wait less than one
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      const float shift = -mean[r] * rstd[r];
      if (r > 0 && row + r * step >= call.rows) break;
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (k + 1 == held && !has_last) break;
        const auto xs = words_of<T>(slot + place(0, r, k)), dys = words_of<T>(slot + place(1, r, k));
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float xhat = is_short ? xs[i] * rstd[r] + shift : (xs[i] - mean[r]) * rstd[r], d = dys[i],
                      d_xhat = d * xhat;
          scale_sums[k][i] += d_xhat;
          bias_sums[k][i] += d;
          auto& sum = (i % 2 == 0 ? sums : odd).of[r];
          sum = {sum.g + d * factors[k][i], sum.g_xhat + d_xhat * factors[k][i]};
        }
      }
    }
    sums = sums_of_team(sums + odd, of_warps, team, team_threads, turn);
    // Rows are read again from shared memory: there are no registers to keep them in.
    asm volatile("" ::: "memory");
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (r > 0 && row + r * step >= call.rows) break;
      // dx = rstd * g - rstd * avg(g) - (x - mean) * rstd^2 * avg(g * xhat)
      const float slope = -rstd[r] * rstd[r] * sums.of[r].g_xhat * per_width;
      const float offset =
          (centered ? -rstd[r] * sums.of[r].g * per_width : 0.0f) - (is_short ? mean[r] * slope : 0.0f);
#pragma unroll
      for (int k = 0; k < held; ++k) {
        if (k + 1 == held && !has_last) break;
        const auto xs = words_of<T>(slot + place(0, r, k)), dys = words_of<T>(slot + place(1, r, k));
        float made[n];
#pragma unroll
        for (int i = 0; i < n; ++i)
          made[i] = (is_short ? xs[i] : xs[i] - mean[r]) * slope + (dys[i] * factors[k][i] * rstd[r] + offset);
        if (has_addend) {
          const auto terms = words_of<T>(slot + place(2, r, k));
#pragma unroll
          for (int i = 0; i < n; ++i) made[i] += terms[i];
        }
        const Packed<T, n> rounded = pack<T>(made);
        store_packed(dx + r * row_step + k * stride, rounded);
        if constexpr (drops) {
          const int64_t at = (row + r * step) * call.width + n * t + k * stride;
          const Draws<n> draws(call.stream, call.dropout.first_draw + at);
          const float factor = static_cast<float>(call.dropout.factor);
#pragma unroll
          for (int i = 0; i < n; ++i) made[i] = draws.keep(i, rounded[i], call.dropout.dropped, factor);
          store_packed(static_cast<T*>(call.dropped) + at, pack<T>(made));
        }
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  if (!scale_partials && !bias_partials) return;
  __syncthreads();  // the sums lie over the ring, whose copies have all been waited for
  float4 *scale_of_threads = reinterpret_cast<float4*>(ring),
         *bias_of_threads = scale_of_threads + held * n / 4 * threads;
  const ColumnSums scale{scale_of_threads, scale_partials, call.dscale},
      bias{bias_of_threads, bias_partials, call.dbias};
  if (scale_partials) keep_sums<Shares>(scale_of_threads, scale_sums);
  if (bias_partials) keep_sums<Shares>(bias_of_threads, bias_sums);
  __syncthreads();
  write_partials<Shares, n>(scale, bias, team_threads, accesses);
  write_sums<P, Shares, n>(scale, bias, accesses);
}

// Rows of the grid's second dimension: dscale, dbias. Partials of a block are in the order of the columns.
struct ParameterSums {
  const float* partials;
  void* out;
};
template <typename P>
__global__ void __launch_bounds__(combine_threads)
    parameter_grads_kernel(ParameterSums first, ParameterSums second, int64_t count, int64_t width, int across) {
  const ParameterSums sums = blockIdx.y == 0 ? first : second;
  wait_for_launch_before();
  combine_partials(sums.partials, count, width, across, Add(), 0.0f,
                   [&](int64_t column, float total) { static_cast<P*>(sums.out)[column] = narrow<P>(total); });
}

// What the card's multiprocessors have for norm_grad_kernel.
struct Multiprocessors {
  int count = 1, shared_bytes = 48 << 10;  // of a block

  Multiprocessors() {
    (void)count_multiprocessors_together(count);
    (void)read_card_attribute(shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
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
      while (needed <= max_threads && int64_t{needed} * each < accesses) needed *= 2;
      if (needed > max_threads || int64_t{needed} * each >= fewest) continue;
      fewest = int64_t{needed} * each;
      threads = needed;
      held = each;
    }
  }
  bool fit() const { return threads > 0; }
};

struct Partials {
  float *scale, *bias;
  int64_t count, width;
};

// Of a block's shared memory, one KiB is left to what teams add up.
template <typename Shares>
int stages_in(int shared_bytes, bool has_addend) {
  constexpr int access_bytes = static_cast<int>(vector_bytes);
  const int stage_bytes = (has_addend ? 3 : 2) * Shares::held * Shares::at_once * Shares::threads * access_bytes;
  return std::min((shared_bytes - (1 << 10)) / stage_bytes, max_stages);
}

template <typename T, typename P, bool centered, typename Shares>
cudaError_t launch_teams(const RowNormGradCall& call, int team_threads, const Partials& partials, int shared_bytes,
                         cudaStream_t stream) {
  constexpr int sums_bytes = 2 * Shares::held * vector_length<T> * Shares::threads * static_cast<int>(sizeof(float));
  constexpr int access_bytes = static_cast<int>(vector_bytes);
  const auto kernel =
      call.dropped ? norm_grad_kernel<T, P, centered, true, Shares> : norm_grad_kernel<T, P, centered, false, Shares>;
  const int stages = std::max(stages_in<Shares>(shared_bytes, call.addend != nullptr), 1);
  const int ring_bytes =
      stages * (call.addend ? 3 : 2) * Shares::held * Shares::at_once * Shares::threads * access_bytes;
  const int bytes = std::max(ring_bytes, sums_bytes);
  return launch_together(kernel, partials.count, Shares::threads, bytes, stream, call, team_threads, stages,
                         partials.scale, partials.bias);
}

template <typename T, typename P, bool centered>
cudaError_t launch_first_stage(const RowNormGradCall& call, const RowTeams& teams, const Partials& partials,
                               int shared_bytes, cudaStream_t stream) {
  if (access_of_lanes<T>(call) > 0)
    return launch_norm_grad_by_lanes<T, P, centered>(call, static_cast<unsigned>(partials.count), partials.scale,
                                                     partials.bias, stream);
  if (!teams.fit()) {
    norm_dx_rereading_kernel<T, P, centered>
        <<<static_cast<unsigned>(call.rows), threads_for_row(call.width), 0, stream>>>(call);
    const dim3 grid(static_cast<unsigned>(divide_up(call.width, 256)), static_cast<unsigned>(partials.count));
    if (partials.scale || partials.bias)
      column_partials_kernel<T, centered><<<grid, 256, 0, stream>>>(call, partials.scale, partials.bias);
    return cudaGetLastError();
  }
  if (teams.threads <= widest_pair) shared_bytes = std::min(shared_bytes, most_shared_bytes);
  const auto launch = [&](auto shares) {
    return launch_teams<T, P, centered, decltype(shares)>(call, teams.threads, partials, shared_bytes, stream);
  };
  const auto takes_pairs = [&](auto pairs) {
    return teams.threads <= widest_pair && stages_in<decltype(pairs)>(shared_bytes, call.addend != nullptr) > 1;
  };
  using One = RowShares<1, 2>;
  using Two = RowShares<2, 2>;
  using Three = RowShares<3, 2>;
  static_assert(max_held == Three::held);
  if (teams.held == 1) return takes_pairs(One()) ? launch(One()) : launch(RowShares<1, 1>());
  if (teams.held == 2) return takes_pairs(Two()) ? launch(Two()) : launch(RowShares<2, 1>());
  return takes_pairs(Three()) ? launch(Three()) : launch(RowShares<3, 1>());
}

template <typename P>
cudaError_t launch_parameter_grads(const RowNormGradCall& call, const Partials& partials, cudaStream_t stream) {
  if (!call.dscale && !call.dbias) return cudaSuccess;
  const ParameterSums scale{partials.scale, call.dscale}, bias{partials.bias, call.dbias};
  const dim3 grid(combining_blocks(partials.count, call.width), call.dscale && call.dbias ? 2 : 1);
  const auto kernel = parameter_grads_kernel<P>;
  // As the kernel before has it, or it could not begin on a multiprocessor before that has left.
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      error != cudaSuccess)
    return error;
  const ParameterSums& first = call.dscale ? scale : bias;
  const int across = combined_columns(partials.count);
  if (call.rows > 0)
    return launch_early(kernel, grid, combine_threads, stream, first, bias, partials.count, partials.width, across);
  kernel<<<grid, combine_threads, 0, stream>>>(first, bias, 0, partials.width, across);
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
                            .width = call.width};
    if (call.rows > 0) {
      if (cudaError_t error = launch_first_stage<T, P, centered>(call, teams, partials, card.shared_bytes, stream);
          error != cudaSuccess)
        return error;
      if (teams.fit() && access_of_lanes<T>(call) == 0) return cudaSuccess;
    }
    return launch_parameter_grads<P>(call, partials, stream);
  });
}

}  // namespace

cudaError_t layer_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<true>(call, stream); }
cudaError_t rms_norm_grad(const RowNormGradCall& call, cudaStream_t stream) { return norm_grad<false>(call, stream); }

}  // namespace plimsoll::cuda
