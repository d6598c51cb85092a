#pragma once

// What the gradients of attention share on the matrix units.

#include "kernels/cuda/attention/attention_dropout.cuh"
#include "kernels/cuda/attention/attention_masks.cuh"
#include "kernels/cuda/attention/one_pass_sizes.h"

namespace plimsoll::cuda {

// A row's lse in units of log 2, such that every probability of a row that is closed whole becomes 0.
__device__ inline float in_log2(float lse) { return lse > closed_lse ? lse * log2_e : INFINITY; }

__host__ __device__ inline int64_t turn_count(const AttentionShape& n) {
  return n.batch * n.heads * ((n.rows + one_pass_rows - 1) / one_pass_rows) *
         one_pass_turns(n.depth > n.value_depth ? n.depth : n.value_depth);
}

// A row's lse in units of log 2, and its delta, dy . y without the factor of dropout.
struct RowConstants {
  float lse, delta;

  __device__ RowConstants() : lse(INFINITY), delta(0.0f) {}
  __device__ RowConstants(const AttentionShape& n, const Head& head, int row, const AttentionGradCall& call)
      : RowConstants() {
    if (row >= n.rows) return;
    const int64_t at = head.lse(n, row);
    lse = in_log2(call.lse[at]);
    delta = call.delta[at];
  }
};

// From a score and its row's lse, both in units of log 2. Rounding may leave a score above its lse.
__device__ inline float probability(float score, float lse) { return exp2_approx(fminf(score - lse, 0.0f)); }

// Sums dy . v less delta, without what dropout drops: probabilities times these differences are dS. constants(m, t, e)
// are those of an element's row.
template <typename Tile, typename Bits, typename Constants>
__device__ void subtract_deltas(Sums<Tile::m_tiles, Tile::n_tiles>& dp, const Bits* bits, Constants constants) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool kept = !bits || bits->kept(m, t, e);
        dp[m][t][e] = (kept ? dp[m][t][e] : 0.0f) - constants(m, t, e).delta;
      }
}

// Caps sums q . k that no mask has changed yet, and multiplies the differences with the cap's slope: no registers hold
// slopes until masks have been added.
template <typename Tile>
__device__ void cap_with_slopes(Sums<Tile::m_tiles, Tile::n_tiles>& scores,
                                Sums<Tile::m_tiles, Tile::n_tiles>& differences, const Cap& cap) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float tangent = cap.tangent(scores[m][t][e]);
        scores[m][t][e] = tangent * cap.to_sum;
        differences[m][t][e] *= 1.0f - tangent * tangent;
      }
}

// Masked sums q . k become what dropout left of the probabilities, and sums dy . v, or differences already, dS: both
// without the factor of the kept ones.
template <typename Tile, bool has_differences = false, typename Bits, typename Constants>
__device__ void differentiate(Sums<Tile::m_tiles, Tile::n_tiles>& scores, Sums<Tile::m_tiles, Tile::n_tiles>& dp,
                              float to_log2, const Bits* bits, Constants constants) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowConstants& row = constants(m, t, e);
        const float p = probability(scores[m][t][e] * to_log2, row.lse);
        const bool kept = !bits || bits->kept(m, t, e);
        scores[m][t][e] = kept ? p : 0.0f;
        dp[m][t][e] = p * (has_differences ? dp[m][t][e] : (kept ? dp[m][t][e] : 0.0f) - row.delta);
      }
}

// Writes delta of each row, and for one pass its lse and the turns' beginning.
[[nodiscard]] cudaError_t launch_deltas(const AttentionShape& shape, const AttentionGradCall& grads,
                                        cudaStream_t stream);

// The gradient of the mask from the gradients of all scores.
[[nodiscard]] cudaError_t sum_score_grads(const AttentionShape& shape, const ScoreGrads& scores,
                                          const MaskGradCall& mask, cudaStream_t stream);

inline bool are_aligned(const AttentionShape& shape, const AttentionGradCall& grads) {
  return shape.depth % 8 == 0 && shape.value_depth % 8 == 0 && is_aligned(grads.q, shape.q_step) &&
         is_aligned(grads.k, shape.k_step) && is_aligned(grads.v, shape.v_step) && is_aligned(grads.dy, 0);
}
// Together with y, dq, dk and dv.
inline bool are_aligned_with_results(const AttentionShape& shape, const AttentionGradCall& grads) {
  return are_aligned(shape, grads) && is_aligned(grads.y, 0) && is_aligned(grads.dq, 0) && is_aligned(grads.dk, 0) &&
         is_aligned(grads.dv, 0);
}

}  // namespace plimsoll::cuda
