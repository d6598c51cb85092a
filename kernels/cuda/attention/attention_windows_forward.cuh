#pragma once

// What forward of attention in small windows shares, whoever brings the tiles.

#include "kernels/cuda/attention/attention_windows.cuh"

namespace plimsoll::cuda {

// Sums of values of sixteen rows, and for each half of the rows the factor that makes them means and the lse.
struct WindowMeans {
  RowSums sums = {};
  float factors[2], lse[2];
};

// A warp's sixteen rows, of which `row` and `row` + 8 are this thread's, over a window's keys and values. `numbers` are
// the window's segments where it is divided into several.
template <typename T, bool has_segments, int groups, typename Numbers>
__device__ void attend_to_window(WindowMeans& out, const EightRows (&queries)[2], const unsigned char* keys,
                                 const unsigned char* values, const WindowAdditions<groups>& added_by_mask,
                                 float to_log2, const WindowPlaces& places, int row, const Numbers& numbers,
                                 bool is_divided) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float scores[window_groups][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    add_products<T>(scores[i], queries, places.rows(keys, i));
    const float4 added = added_by_mask.at(i, lane);
    float additions[4] = {added.x, added.y, added.z, added.w};
    if (has_segments && is_divided) WindowSegments<has_segments>::close(additions, numbers, row, 8 * i + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[i][e] = scores[i][e] * to_log2 + additions[e];
      largest[e / 2] = fmaxf(largest[e / 2], scores[i][e]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float& top = largest[half];
    top = fmaxf(top, __shfl_xor_sync(whole_warp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(whole_warp, top, 2));
    const float shift = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < groups; ++i)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        scores[i][e] = exp2_approx(scores[i][e] - shift);
        sum[half] += scores[i][e];
      }
    sum[half] += __shfl_xor_sync(whole_warp, sum[half], 1);
    sum[half] += __shfl_xor_sync(whole_warp, sum[half], 2);
    out.factors[half] = sum[half] > 0.0f ? __fdividef(1.0f, sum[half]) : 0.0f;
    // The log of 0 is -inf, as the lse of a row is that may attend to nothing.
    out.lse[half] = (shift + __log2f(sum[half])) * ln_2;
  }
#pragma unroll
  for (int i = 0; i < window_tiles; ++i) places.add_rows<T>(out.sums, rounded<T>(scores, i), values, i);
}

}  // namespace plimsoll::cuda
