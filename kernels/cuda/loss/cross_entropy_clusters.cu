#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/loss/row_clusters.h"
#include "kernels/cuda/loss/row_loss.cuh"

// Serves cross_entropy_with_grad on Hopper, for rows of consecutive classes that fit the shared memory of a cluster of
// blocks: scores [rows, classes] are read once and the gradient is written once, whatever the caches hold.
//
// Blocks stay and take one row after the other. One warp has the copy engine bring chunks of a row and take the
// gradient away. The other warps add up a chunk's exponentials as soon as it is there, tell their sums to all blocks of
// the cluster, and write the gradient over the chunks. A chunk that is through is filled from the next row at once.
// Sums are added in the order of blocks and warps, so that equal calls give equal bits.
//
// The multiprocessor's instructions would take longer than the memory. So 16-bit scores are compared in pairs, and
// exp(x - y) * f is one multiply-add and one power of 2: 2^(x * log2(e) + (log2(f) - y * log2(e))).

namespace plimsoll::cuda {
namespace {

struct Call {
  ClassScores scores;
  ClassLabels labels;
  RowResults results;
  void* dlogits;
  const void* logits;
  const float *weight, *dloss, *dlse;
};

// ---- Scores as they lie in words of 32 bits ----

template <typename T>
struct ScoreWord {
  static constexpr int count = 2;
  static constexpr uint32_t signs = 0x80008000u;
  using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;

  float at[count];

  __device__ explicit ScoreWord(uint32_t word) {
    if constexpr (std::is_same_v<T, bf16>) {
      at[0] = __uint_as_float(word << 16);
      at[1] = __uint_as_float(word & 0xffff0000u);
    } else {
      const float2 both = __half22float2(as_pair(word));
      at[0] = both.x, at[1] = both.y;
    }
  }
  __device__ float largest() const { return fmaxf(at[0], at[1]); }
  __device__ static Pair as_pair(uint32_t word) {
    Pair pair;
    memcpy(&pair, &word, sizeof(pair));
    return pair;
  }
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    const Pair pair = __hmax2(as_pair(a), as_pair(b));
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
  }
  __device__ static uint32_t packed(const float (&values)[count]) { return packed_pair<T>(values[0], values[1]); }
};

template <>
struct ScoreWord<float> {
  static constexpr int count = 1;
  static constexpr uint32_t signs = 0x80000000u;

  float at[count];

  __device__ explicit ScoreWord(uint32_t word) { at[0] = __uint_as_float(word); }
  __device__ float largest() const { return at[0]; }
  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  }
  __device__ static uint32_t packed(const float (&values)[count]) { return __float_as_uint(values[0]); }
};

// exp(x - reference) * |factor|. In one multiply-add the reference is rounded with log2(e), which 16-bit scores do not
// show and f32 would.
template <typename T>
struct ExponentialOf {
  float reference, factor, offset;

  __device__ explicit ExponentialOf(float reference, float factor = 1.0f)
      : reference(reference), factor(fabsf(factor)), offset(log2f(fabsf(factor)) - reference * log2_e) {}
  __device__ float operator()(float x) const {
    if constexpr (std::is_same_v<T, float>) return exp2_approx((x - reference) * log2_e) * factor;
    return exp2_approx(fmaf(x, log2_e, offset));
  }
};

// A reference that can be multiplied by log2(e). Scores below it, such as the least bf16, add nothing to a sum.
constexpr float least_reference = -1e38f;

// `total` is relative to at least that.
template <typename T, int words>
__device__ void add_words(RunningSum& total, const uint32_t (&at)[words]) {
  uint32_t largest_of_words = at[0];
#pragma unroll
  for (int i = 1; i < words; ++i) largest_of_words = ScoreWord<T>::larger(largest_of_words, at[i]);
  const float largest = ScoreWord<T>(largest_of_words).largest();
  if (largest > total.largest) {
    total.sum *= exp2_approx((total.largest - largest) * log2_e);
    total.largest = largest;
  }
  const ExponentialOf<T> exponential(total.largest);
  float sums[ScoreWord<T>::count] = {};
#pragma unroll
  for (int i = 0; i < words; ++i) {
    const ScoreWord<T> word(at[i]);
#pragma unroll
    for (int half = 0; half < word.count; ++half) sums[half] += exponential(word.at[half]);
  }
#pragma unroll
  for (float sum : sums) total.sum += sum;
}

using Words = Vector<uint32_t, 4>;  // of an access

// An access whose first score is of class c; those behind the classes are left out.
template <typename T>
__device__ void add_access(RowTotals& totals, const Call& call, const Words& words, int c) {
  constexpr int n = vector_length<T>;
  const bool whole = c + n <= call.scores.classes, smooths = call.labels.smoothing > 0.0f;
  if (whole) add_words<T>(totals.exponentials, words.at);
  if (whole && !smooths) return;
  Vector<T, n> scores;
  memcpy(scores.at, words.at, sizeof(scores));
  for (int i = 0; i < n; ++i) {
    if (c + i >= call.scores.classes) return;
    const float x = widen(scores.at[i]);
    if (!whole) totals.exponentials = MergeSums()(totals.exponentials, RunningSum{x, 1.0f});
    if (smooths) totals.spread.add(call.labels, c + i, x);
  }
}

// The gradient of an access.
template <typename T>
struct GradientOfRow {
  const Call& call;
  RowGradient gradient;
  ExponentialOf<T> softmax;
  uint32_t sign;
  int label;  // far below all classes where none counts

  __device__ GradientOfRow(const Call& call, const RowGradient& gradient)
      : call(call),
        gradient(gradient),
        softmax(gradient.lse, gradient.of_softmax),
        sign(gradient.of_softmax < 0.0f ? ScoreWord<T>::signs : 0u),
        label(gradient.label < 0 ? -vector_length<T> : static_cast<int>(gradient.label)) {}

  __device__ bool has_label(int c) const { return static_cast<unsigned>(label - c) < vector_length<T>; }
  __device__ bool is_plain(int c) const {
    return !gradient.is_constant && gradient.share == 0.0f && !has_label(c) &&
           c + vector_length<T> <= call.scores.classes;
  }
  __device__ Words plain(const Words& words) const {
    Words made;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ScoreWord<T> word(words.at[i]);
#pragma unroll
      for (float& x : word.at) x = softmax(x);
      made.at[i] = ScoreWord<T>::packed(word.at) ^ sign;
    }
    return made;
  }
  __device__ Words operator()(const Words& words, int c) const {
    if (is_plain(c)) return plain(words);
    Vector<T, vector_length<T>> scores;
    memcpy(scores.at, words.at, sizeof(scores));
#pragma unroll
    for (int i = 0; i < vector_length<T>; ++i) {
      const float value =
          gradient.is_constant ? gradient.constant : gradient.at(call.labels, c + i, widen(scores.at[i]));
      scores.at[i] = narrow<T>(c + i < call.scores.classes ? value : 0.0f);
    }
    Words made;
    memcpy(made.at, scores.at, sizeof(made));
    return made;
  }
};

// ---- The kernel ----

__device__ inline float4 as_floats(const RowTotals& totals) {
  return {totals.exponentials.largest, totals.exponentials.sum, totals.spread.weights, totals.spread.logits};
}

struct MergeTotals {
  __device__ RowTotals operator()(const RowTotals& a, const RowTotals& b) const {
    return {MergeSums()(a.exponentials, b.exponentials), a.spread + b.spread};
  }
};

// A block's part of a row, and its shared memory: chunks, barriers, and the sums of all warps of the cluster, for rows
// in turn.
template <typename Chunks>
struct Part {
  static constexpr int warps = Chunks::computing_threads / warp_threads;

  uint8_t* chunks;
  Barrier *full, *empty, *told;
  float4* sums;  // [2][blocks * warps]
  int64_t row_bytes, first_byte;
  int bytes, count;

  __device__ Part(void* shared, const RowClusters& clusters)
      : chunks(static_cast<uint8_t*>(shared)),
        full(reinterpret_cast<Barrier*>(chunks + clusters.part_bytes())),
        empty(full + clusters.chunks()),
        told(empty + clusters.chunks()),
        sums(reinterpret_cast<float4*>(told + 2)),
        row_bytes(clusters.row_bytes),
        first_byte(int64_t{block_of_cluster()} * clusters.chunks() * Chunks::bytes) {
    const int64_t left = row_bytes - first_byte, most = int64_t{clusters.chunks()} * Chunks::bytes;
    bytes = static_cast<int>(left < 0 ? 0 : left < most ? left : most);
    count = static_cast<int>(divide_up(bytes, Chunks::bytes));
  }
  static int shared_bytes(const RowClusters& clusters) {
    return clusters.part_bytes() + (2 * clusters.chunks() + 2) * static_cast<int>(sizeof(Barrier)) +
           2 * clusters.blocks * warps * static_cast<int>(sizeof(float4));
  }

  __device__ void create_barriers(int of_most) const {
    for (int i = 0; i < of_most; ++i) {
      set_up_barrier(full + i, 1);
      set_up_barrier(empty + i, warps);
    }
    set_up_barrier(told, blocks_of_cluster() * warps);
    show_barriers_to_copies();
  }
  __device__ int bytes_of(int chunk) const { return min(Chunks::bytes, bytes - chunk * Chunks::bytes); }
};

// The warp beside those that compute: one thread of it. Each chunk of the gradient goes out before the next row's
// scores come in.
template <typename Chunks>
__device__ void move_rows(const Part<Chunks>& part, const Call& call) {
  const auto* in = static_cast<const uint8_t*>(call.logits) + part.first_byte;
  auto* out = static_cast<uint8_t*>(call.dlogits) + part.first_byte;
  uint32_t parity = 0;
  int64_t before = -1;
  const auto store = [&](int chunk) {
    const int at = chunk * Chunks::bytes;
    wait_at(part.empty + chunk, parity ^ 1);
    store_bytes(out + before * part.row_bytes + at, part.chunks + at, part.bytes_of(chunk));
    wait_for_stored_boxes();
  };
  for (int64_t row = cluster_of_grid(); row < call.scores.outer; row += clusters_of_grid()) {
    for (int chunk = 0; chunk < part.count; ++chunk) {
      const int at = chunk * Chunks::bytes, bytes = part.bytes_of(chunk);
      if (before >= 0) store(chunk);
      arrive_with_copies(part.full + chunk, bytes);
      copy_bytes(part.chunks + at, in + row * part.row_bytes + at, bytes, part.full + chunk);
    }
    before = row;
    parity ^= 1;
  }
  for (int chunk = 0; before >= 0 && chunk < part.count; ++chunk) store(chunk);
}

// A thread's accesses of a chunk, which is full or the row's last: visit(access, its class).
template <typename T, typename Chunks, typename Visit>
__device__ void for_chunk(const Part<Chunks>& part, int chunk, Visit visit) {
  auto* words = reinterpret_cast<Words*>(part.chunks + chunk * Chunks::bytes);
  const int first = static_cast<int>((part.first_byte + int64_t{chunk} * Chunks::bytes) / sizeof(T));
  const int accesses = part.bytes_of(chunk) / static_cast<int>(sizeof(Words));
  for (int i = static_cast<int>(threadIdx.x); i < accesses; i += Chunks::computing_threads)
    visit(words[i], first + i * vector_length<T>);
}

// Of this thread's accesses of the row.
template <typename T, typename Chunks>
__device__ RowTotals totals_of_part(const Part<Chunks>& part, const Call& call, int plain_chunks, uint32_t parity) {
  RowTotals totals;
  totals.exponentials = {least_reference, 0.0f};
  for (int chunk = 0; chunk < part.count; ++chunk) {
    wait_at(part.full + chunk, parity);
    if (chunk < plain_chunks) {
      const auto* words = reinterpret_cast<const Words*>(part.chunks + chunk * Chunks::bytes) + threadIdx.x;
      uint32_t at[4 * Chunks::accesses];
#pragma unroll
      for (int i = 0; i < Chunks::accesses; ++i)
        memcpy(at + 4 * i, words + i * Chunks::computing_threads, sizeof(Words));
      add_words<T>(totals.exponentials, at);
    } else {
      for_chunk<T>(part, chunk, [&](const Words& words, int c) { add_access<T>(totals, call, words, c); });
    }
  }
  return totals;
}

// Of the row, for every thread that computes.
template <typename Chunks>
__device__ RowTotals totals_of_cluster(const Part<Chunks>& part, RowTotals totals, uint32_t parity) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int blocks = blocks_of_cluster(), count = blocks * Part<Chunks>::warps;
  totals = warp_reduce(totals, MergeTotals());
  float4* of_row = part.sums + parity * count;
  if (lane < blocks)
    tell_block(lane, of_row + block_of_cluster() * Part<Chunks>::warps + warp, as_floats(totals), part.told);
  wait_for_told(part.told, parity);
  totals = {};
  for (int i = lane; i < count; i += warp_threads) {
    const float4 sums = of_row[i];
    totals = MergeTotals()(totals, {{sums.x, sums.y}, {sums.z, sums.w}});
  }
  return warp_reduce(totals, MergeTotals());
}

// Over the scores in shared memory, chunk by chunk, each of which goes to memory then.
template <typename T, typename Chunks>
__device__ void write_gradient_of_part(const Part<Chunks>& part, const GradientOfRow<T>& gradient, int plain_chunks) {
  for (int chunk = 0; chunk < part.count; ++chunk) {
    auto* words = reinterpret_cast<Words*>(part.chunks + chunk * Chunks::bytes) + threadIdx.x;
    const int first = static_cast<int>((part.first_byte + int64_t{chunk} * Chunks::bytes) / sizeof(T)) +
                      static_cast<int>(threadIdx.x) * vector_length<T>;
    if (chunk < plain_chunks) {
      Words at[Chunks::accesses];
#pragma unroll
      for (int i = 0; i < Chunks::accesses; ++i) at[i] = words[i * Chunks::computing_threads];
#pragma unroll
      for (int i = 0; i < Chunks::accesses; ++i)
        words[i * Chunks::computing_threads] =
            gradient(at[i], first + i * Chunks::computing_threads * vector_length<T>);
    } else {
      for_chunk<T>(part, chunk, [&](Words& access, int c) { access = gradient(access, c); });
    }
    show_to_matrix_units();  // and to the copy engine
    arrive_as_warp_at(part.empty + chunk);
  }
}

template <typename T, typename Chunks>
__global__ void __launch_bounds__(Chunks::computing_threads + warp_threads, Chunks::resident_blocks)
    cluster_kernel(Call call, RowClusters clusters) {
  if constexpr (!has_warpgroups) {
    __trap();
  } else {
    extern __shared__ __align__(128) uint8_t shared[];
    const Part<Chunks> part(shared, clusters);
    if (threadIdx.x == 0) part.create_barriers(clusters.chunks());
    __syncwarp();
    wait_for_cluster();
    if (threadIdx.x >= Chunks::computing_threads) {
      if (threadIdx.x == Chunks::computing_threads) move_rows(part, call);
      return;
    }
    // Full ones whose scores all count, where nothing is asked of single classes.
    const int64_t of_classes = call.scores.classes * static_cast<int64_t>(sizeof(T)) - part.first_byte;
    const int plain_chunks = call.labels.smoothing > 0.0f || of_classes < 0
                                 ? 0
                                 : static_cast<int>(min(int64_t{part.bytes}, of_classes) / Chunks::bytes);
    uint32_t parity = 0;
    for (int64_t row = cluster_of_grid(); row < call.scores.outer; row += clusters_of_grid(), parity ^= 1) {
      const Label label(call.labels, row, call.scores.classes);
      RowTotals totals = totals_of_part<T>(part, call, plain_chunks, parity);
      // Before the gradient is written over it. None of the cluster's blocks writes before all have told their sums.
      const int64_t own = label.counts() ? label.index * static_cast<int64_t>(sizeof(T)) - part.first_byte : 0;
      const bool finishes =
          threadIdx.x == 0 && own >= 0 && own < part.bytes && (label.counts() || block_of_cluster() == 0);
      const float label_logit =
          finishes && label.counts() ? widen(*reinterpret_cast<const T*>(part.chunks + own)) : 0.0f;
      totals = totals_of_cluster(part, totals, parity);
      const float lse = totals.exponentials.log();
      if (finishes) finish_row(call.scores, call.labels, call.results, row, label, lse, label_logit, totals.spread);
      const RowGradient gradient(call.scores, call.labels, label,
                                 row_gradient(call.labels, call.dloss, call.weight, row), call.dlse, row, lse,
                                 totals.spread.weights);
      write_gradient_of_part(part, GradientOfRow<T>(call, gradient), plain_chunks);
    }
  }
}

// As many clusters as are resident at once.
template <typename T, typename Chunks>
cudaError_t launch(const Call& call, const RowClusters& clusters, cudaStream_t stream) {
  auto* kernel = cluster_kernel<T, Chunks>;
  const int bytes = Part<Chunks>::shared_bytes(clusters);
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess)
    return error;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(clusters.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters.blocks);
  config.blockDim = Chunks::computing_threads + warp_threads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int resident = 0;
  if (cudaError_t error = cudaOccupancyMaxActiveClusters(&resident, kernel, &config); error != cudaSuccess)
    return error;
  if (resident < 1) return cudaErrorInvalidConfiguration;
  config.gridDim.x *= static_cast<unsigned>(std::min<int64_t>(resident, call.scores.outer));
  return cudaLaunchKernelEx(&config, kernel, call, clusters);
}

}  // namespace

cudaError_t cross_entropy_in_clusters(const LossWithGradient& call, cudaStream_t stream) {
  return with_rows_of(call, stream, [&](const RowResults& results) {
    const Call of_rows{call.scores, call.labels, results,    call.dlogits,
                       call.logits, call.weight, call.dloss, call.dlse};
    return with_f32_math(call.scores.type, [&]<typename T>(T*) {
      const RowClusters clusters(call.scores.stored * static_cast<int64_t>(sizeof(T)));
      if (call.scores.inner != 1 || clusters.blocks == 0) return cudaErrorInvalidValue;
      if (clusters.chunk_bytes == ShortRows::bytes) return launch<T, ShortRows>(of_rows, clusters, stream);
      if (clusters.chunk_bytes == LongRows::bytes) return launch<T, LongRows>(of_rows, clusters, stream);
      return launch<T, LongestRows>(of_rows, clusters, stream);
    });
  });
}

}  // namespace plimsoll::cuda
