#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/common/packed.cuh"

// Serves attention_grad_with_mask where dS is in memory: the gradient of the mask, summed over the samples and heads
// that share it. A thread has eight neighbouring columns of every `shares`-th summand; the sums of the shares come in
// order. Bound by reading dS.

namespace plimsoll::cuda {
namespace {

constexpr int sum_threads = 256, run = 8, max_shares = 8;

// Do the diagonal or the window close all columns of a run? There dS is 0, and may not have been written.
__device__ bool is_closed(const AttentionShape& n, int64_t place, int64_t pitch) {
  if (!n.causal && n.window == 0) return false;
  const int64_t row = place / pitch, column = place - row * pitch;
  return (n.causal && column > row) ||
         (n.window > 0 && (column - row >= n.window || row - (column + run - 1) >= n.window));
}

// dS [batch, heads, rows, pitch], of which `summands` are added for each element of the mask: sums run over
// `summed_heads` heads of a sample, then over samples.
template <typename T>
__global__ void __launch_bounds__(sum_threads)
    sum_score_grads_kernel(AttentionShape n, ScoreGrads scores, MaskGradCall mask, unsigned summands,
                           unsigned summed_heads, int shares) {
  __shared__ float sums[run][sum_threads + 4];
  const int thread = static_cast<int>(threadIdx.x), across = sum_threads / shares, share = thread / across;
  const int64_t runs = n.rows * scores.pitch / run, all_runs = mask.mask_batch * mask.mask_heads * runs;
  const int64_t first = int64_t{blockIdx.x} * across, mine = first + thread % across;
  float sum[run] = {};
  if (mine < all_runs && !is_closed(n, mine % runs * run, scores.pitch)) {
    const int64_t of_mask = mine / runs, b = of_mask / mask.mask_heads, h = of_mask % mask.mask_heads;
    const T* const from = static_cast<const T*>(scores.at) + ((b * n.heads + h) * runs + mine % runs) * run;
#pragma unroll 8
    for (unsigned s = share; s < summands; s += shares) {
      const int64_t number = summed_heads == 1 ? s * n.heads : s / summed_heads * n.heads + s % summed_heads;
      const auto values = load_packed<run>(from + number * runs * run);
#pragma unroll
      for (int i = 0; i < run; ++i) sum[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < run; ++i) sums[i][thread] = sum[i];
  __syncthreads();
  for (int at = thread; at < across * run; at += sum_threads) {
    int64_t place = first * run + at;  // among all with their padding
    if (place >= all_runs * run) break;
    if (scores.pitch != n.columns) {
      const int64_t row = place / scores.pitch, column = place - row * scores.pitch;
      if (column >= n.columns) continue;
      place = row * n.columns + column;
    }
    float total = sums[at % run][at / run];
    for (int other = 1; other < shares; ++other) total += sums[at % run][other * across + at / run];
    store_any(mask.dmask, mask.dmask_type, place, static_cast<double>(total));
  }
}

}  // namespace

cudaError_t sum_score_grads(const AttentionShape& shape, const ScoreGrads& scores, const MaskGradCall& mask,
                            cudaStream_t stream) {
  constexpr int64_t wanted_threads = int64_t{1} << 18;
  const int64_t summed_heads = mask.mask_heads == 1 ? shape.heads : 1;
  const int64_t summands = (mask.mask_batch == 1 ? shape.batch : 1) * summed_heads;
  const int64_t runs = mask.mask_batch * mask.mask_heads * shape.rows * scores.pitch / run;
  int shares = 1;
  while (shares < max_shares && shares * runs < wanted_threads && 2 * shares <= summands) shares *= 2;
  const int64_t across = sum_threads / shares;
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    sum_score_grads_kernel<T><<<static_cast<unsigned>((runs + across - 1) / across), sum_threads, 0, stream>>>(
        shape, scores, mask, static_cast<unsigned>(summands), static_cast<unsigned>(summed_heads), shares);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
