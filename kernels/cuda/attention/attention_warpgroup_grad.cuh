#pragma once

// What backward of attention on warpgroups shares, in one pass and in two launches.

#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"

namespace plimsoll::cuda {

// Masked sums become probabilities.
template <typename Tile, typename Lse>
__device__ void probabilities(Sums<1, Tile::n_tiles>& sums, float to_log2, Lse lse_of_row) {
#pragma unroll
  for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[0][t][e] = probability(sums[0][t][e] * to_log2, lse_of_row(t, e));
}

// Sums q . k, -inf where a mask closes, become probabilities of capped scores times the cap's derivative, and `weights`
// the probabilities themselves: both at once, so that no registers hold derivatives until dP has come.
template <typename Tile, typename T, typename Lse, typename Added>
__device__ void capped_probabilities(Sums<1, Tile::n_tiles>& sums, Weights<Tile>& weights, const Cap& cap,
                                     float to_log2, Lse lse_of_row, const Added& added) {
#pragma unroll
  for (int k = 0; k < Tile::n_tiles / 2; ++k) {
    float p[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = 2 * k + i;
        float& sum = sums[0][t][e];
        const float tangent = cap.tangent(sum);
        p[i][e] = probability((cap(sum, tangent) + added(0, t, e)) * to_log2, lse_of_row(t, e));
        sum = p[i][e] * (1.0f - tangent * tangent);
      }
    weights.at[k] = rounded<T>(p, 0);
  }
}

// Where columns are owned, sums dy . v less delta, without what dropout drops, in tiles of 8 rows from `first` to
// before `end`. delta_of(t) are those of rows (t, 0) and (t, 1).
template <typename Tile, bool drops, int first = 0, int end = Tile::n_tiles, typename DeltaOf>
__device__ void subtract_deltas_of_rows(Sums<1, Tile::n_tiles>& dp, const KeptColumns& bits, DeltaOf delta_of) {
#pragma unroll
  for (int t = first; t < end; ++t) {
    const float2 delta = delta_of(t);
    if (drops) {
      const uint2 rows_kept = bits.of_rows(t);
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[0][t][e] = KeptColumns::kept(dp[0][t][e], rows_kept, e);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) dp[0][t][e] -= e % 2 == 0 ? delta.x : delta.y;
  }
}

// Such differences become dS of probabilities.
template <typename Tile, int first = 0, int end = Tile::n_tiles>
__device__ void multiply_differences(Sums<1, Tile::n_tiles>& differences, const Sums<1, Tile::n_tiles>& probabilities) {
#pragma unroll
  for (int t = first; t < end; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) differences[0][t][e] *= probabilities[0][t][e];
}

// Both at once.
template <typename Tile, bool drops, int first = 0, int end = Tile::n_tiles, typename DeltaOf>
__device__ void differentiate_columns(Sums<1, Tile::n_tiles>& dp, const Sums<1, Tile::n_tiles>& probabilities,
                                      const KeptColumns& bits, DeltaOf delta_of) {
  subtract_deltas_of_rows<Tile, drops, first, end>(dp, bits, delta_of);
  multiply_differences<Tile, first, end>(dp, probabilities);
}

}  // namespace plimsoll::cuda
