#pragma once

// Softmax of rows on the matrix units, a tile of columns after the other.

#include "kernels/cuda/attention/attention_mma.cuh"

#include <cmath>

namespace plimsoll::cuda {

// A row's exponents are taken against the largest score so far, or one that was so while none was this much larger:
// what is summed already is then seldom scaled again, and stays far from the largest f16.
inline constexpr float max_growth = 8.0f;

// A row whose largest score, in units of log 2, is below this is closed whole, by a mask of large finite numbers.
inline constexpr float closed_below = -1e8f;

// A warp's rows where rows are owned; scores are sums of products.
template <typename Tile>
struct RowSoftmax {
  float to_log2;
  float largest[Tile::m_tiles][2], sum[Tile::m_tiles][2], rescale[Tile::m_tiles][2];

  __device__ explicit RowSoftmax(float scale) : to_log2(scale * log2_e) {
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) largest[m][half] = -INFINITY, sum[m][half] = 0.0f;
  }

  // Scores become exponentials, and join the sums of rows. True where what the warp has summed with earlier ones must
  // be multiplied by `rescale`.
  __device__ bool add(Sums<Tile::m_tiles, Tile::n_tiles>& scores) {
    const bool grows = grow(scores);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // In a row that is closed whole all scores are equal, and their difference has to be 0. A product of 1e30 less
        // the same product rounded is up to 1e22, whose exponential is infinite.
        const float factor = largest[m][half] * to_log2 < closed_below ? 1.0f : to_log2;
        const float shift = largest[m][half] == -INFINITY ? 0.0f : largest[m][half] * factor;
        float even = 0.0f, odd = 0.0f;  // two chains of additions wait less than one
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t) {
          float* pair = scores[m][t] + 2 * half;
          pair[0] = exp2_approx(pair[0] * factor - shift);
          pair[1] = exp2_approx(pair[1] * factor - shift);
          even += pair[0], odd += pair[1];
        }
        sum[m][half] += even + odd;
      }
    return grows;
  }

  // The same, with exponents against the largest score so far, where no thread's exponentials add up to more than those
  // of max_growth: no score is compared. Else it is false for the whole warp, and nothing joins the sums.
  __device__ bool add_as_before(Sums<Tile::m_tiles, Tile::n_tiles>& scores) {
    constexpr float max_sum = 256.0f;
    static_assert(max_growth == 8.0f, "two to its power is max_sum");
    float here[Tile::m_tiles][2];
    bool fits = true;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = largest[m][half] * to_log2 < closed_below ? 1.0f : to_log2;
        const float shift = largest[m][half] * factor;  // -inf while every score was: these sums do not fit
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t) {
          float* pair = scores[m][t] + 2 * half;
          pair[0] = exp2_approx(pair[0] * factor - shift);
          pair[1] = exp2_approx(pair[1] * factor - shift);
          even += pair[0], odd += pair[1];
        }
        here[m][half] = even + odd;
        fits &= here[m][half] <= max_sum;
      }
    if (!__all_sync(whole_warp, fits)) [[unlikely]]
      return false;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[m][half] += here[m][half];
    return true;
  }

  __device__ void rescale_rows(Sums<Tile::m_tiles, Tile::d_tiles>& rows) const {
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int d = 0; d < Tile::d_tiles; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) rows[m][d][e] *= rescale[m][e / 2];
  }

  // After the last tile: sums over the threads of a row with its sink, and the lse of rows from `first` on.
  __device__ void finish(const AttentionShape& n, const Head& head, int first, const Sinks& sinks, float* lse) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = sum[m][half];
        total += __shfl_xor_sync(whole_warp, total, 1);
        total += __shfl_xor_sync(whole_warp, total, 2);
        const int row = first + lane / 4 + 16 * m + 8 * half;
        const WithSink with_sink(sinks, head.h, largest[m][half] * n.scale, total);
        total = with_sink.sum;
        if (lane % 4 == 0 && row < n.rows) lse[head.lse(n, row)] = with_sink.lse;
      }
  }

 private:
  // As long as no score of a thread is much larger, nothing is asked of the threads that share its rows.
  __device__ bool grow(const Sums<Tile::m_tiles, Tile::n_tiles>& scores) {
    float here[Tile::m_tiles][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float &row = here[m][half] = -INFINITY, odd = -INFINITY;
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t)
          row = fmaxf(row, scores[m][t][2 * half]), odd = fmaxf(odd, scores[m][t][2 * half + 1]);
        row = fmaxf(row, odd);
        grows |= row * to_log2 > largest[m][half] * to_log2 + max_growth;
      }
    if (!__any_sync(whole_warp, grows)) [[likely]]
      return false;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& row = here[m][half];
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 1));
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 2));
        const float next = fmaxf(largest[m][half], row);
        rescale[m][half] = next == -INFINITY ? 1.0f : exp2_approx((largest[m][half] - next) * to_log2);
        largest[m][half] = next;
        sum[m][half] *= rescale[m][half];
      }
    return true;
  }
};

}  // namespace plimsoll::cuda
