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

// A score in units of log 2, and its derivative by what is capped.
struct Scored {
  float log2, slope;
};

// From sums q . k and dy . v of a tile to what dropout left of the probabilities and to dS, both without the factor of
// the kept ones. scored(m, t, e, sum) makes a score of a sum, and constants(m, t, e) are those of an element's row.
template <typename Tile, typename Bits, typename Constants, typename ScoredOf>
__device__ void differentiate_scored(Sums<Tile::m_tiles, Tile::n_tiles>& scores, Sums<Tile::m_tiles, Tile::n_tiles>& dp,
                                     const Bits* bits, Constants constants, ScoredOf scored) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowConstants& row = constants(m, t, e);
        const Scored score = scored(m, t, e, scores[m][t][e]);
        const float p = probability(score.log2, row.lse);
        const bool kept = !bits || bits->kept(m, t, e);
        scores[m][t][e] = kept ? p : 0.0f;
        dp[m][t][e] = p * score.slope * ((kept ? dp[m][t][e] : 0.0f) - row.delta);
      }
}

// Of sums that are masked already.
template <typename Tile, typename Bits, typename Constants>
__device__ void differentiate(Sums<Tile::m_tiles, Tile::n_tiles>& scores, Sums<Tile::m_tiles, Tile::n_tiles>& dp,
                              float to_log2, const Bits* bits, Constants constants) {
  differentiate_scored<Tile>(scores, dp, bits, constants, [&](int, int, int, float sum) {
    return Scored{sum * to_log2, 1.0f};
  });
}

// Of capped scores: a sum is q . k where no mask closes it, and `added` what is added to it once it is capped. dS
// becomes the gradient of what is capped.
template <typename Tile, typename Bits, typename Constants, typename Added>
__device__ void differentiate_capped(Sums<Tile::m_tiles, Tile::n_tiles>& scores, Sums<Tile::m_tiles, Tile::n_tiles>& dp,
                                     const Cap& cap, float to_log2, const Bits* bits, Constants constants,
                                     const Added& added) {
  differentiate_scored<Tile>(scores, dp, bits, constants, [&](int m, int t, int e, float sum) {
    const float tangent = cap.tangent(sum);
    return Scored{(cap(sum, tangent) + added(m, t, e)) * to_log2, 1.0f - tangent * tangent};
  });
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
