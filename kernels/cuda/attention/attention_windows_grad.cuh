#pragma once

// What backward of attention in small windows shares, whoever brings the tiles.

#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"
#include "kernels/cuda/common/packed.cuh"

namespace plimsoll::cuda {

// Tiles of a window.
enum { Q, Dy, K, V, WindowTensors };
using WindowTileSet = unsigned char[WindowTensors][window_bytes];

// What a launch makes: dq, dk and dv, the gradient of the mask, or all of them.
enum class Makes : uint8_t { OperandGrads, MaskGrad, Both };
constexpr bool makes_operand_grads(Makes makes) { return makes != Makes::MaskGrad; }
constexpr bool makes_mask_grad(Makes makes) { return makes != Makes::OperandGrads; }

// y . dy of a row, of which each of four threads has 16 bytes.
template <typename T>
__device__ float dot(const uint4& y, const uint4& dy) {
  Packed<T, 8> a, b;
  memcpy(a.word, &y, sizeof(y));
  memcpy(b.word, &dy, sizeof(dy));
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < 8; ++d) sum += a[d] * b[d];
  sum += __shfl_xor_sync(whole_warp, sum, 1);
  return sum + __shfl_xor_sync(whole_warp, sum, 2);
}

// lse and delta of a window's rows, which thread 4 r + word prepares for rows r and r + 32: its 16 bytes of y and the
// rows' lse are read a window ahead.
template <typename T>
class WindowRowConstants {
 public:
  __device__ WindowRowConstants(const AttentionShape& n, const AttentionGradCall& grads, const Head& head, int first,
                                int step)
      : y_(static_cast<const T*>(grads.y) + head.y(n), n.heads * n.depth, n.rows, static_cast<int>(n.depth), first,
           step),
        lse_(grads.lse + Head{first, head.h}.lse(n, threadIdx.x / 4)),
        lse_step_(step * n.heads * n.rows),
        rows_(static_cast<int>(n.rows)) {}

  __device__ void read(bool exists) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (exists && y_.has(i)) next_y_[i] = __ldg(reinterpret_cast<const uint4*>(y_.at(i)));
      if (exists && row(i) < rows_) next_lse_[i] = lse_[max_window / 2 * i];
    }
    y_.advance();
    lse_ += lse_step_;
  }
  __device__ void write(float2* constants, const unsigned char* dy_tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& own_dy = *reinterpret_cast<const uint4*>(dy_tile + copied_place() + i * (window_bytes / 2));
      const float delta = dot<T>(next_y_[i], own_dy);
      // Rows outside have an lse of -inf here, and so do not count.
      if (threadIdx.x % 4 == 0) constants[row(i)] = {in_log2(next_lse_[i]), delta};
    }
  }

 private:
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 4 + max_window / 2 * i; }

  WindowCopies<T> y_;
  const float* lse_;
  int64_t lse_step_;
  int rows_;
  uint4 next_y_[2] = {};
  float next_lse_[2] = {-INFINITY, -INFINITY};
};

// dS by column, of which 16-byte word w of the rows stands at place w ^ (column % 8).
using WindowScoreGrads = unsigned char[max_window][2 * max_window];

// Where word `rows / 8` of a column of dS lies.
__device__ inline int place_in_ds(int column, int word) { return column * 2 * max_window + ((word ^ column % 8) << 4); }

// From sums k . q and v . dy of columns `column` and `column` + 8 and of eight rows to what the scores' probabilities
// and dS are. `segments` are null where the window has only one.
template <typename Segments>
__device__ void differentiate_eight_rows(float (&p)[4], float (&ds)[4], int group, int column, const float4& added,
                                         const float2* constants, const typename Segments::Numbers* segments,
                                         float to_log2) {
  const int row = 8 * group + static_cast<int>(threadIdx.x) % 4 * 2;
  const float4 two_rows = *reinterpret_cast<const float4*>(constants + row);
  const float lse_of[2] = {two_rows.x, two_rows.z}, delta_of[2] = {two_rows.y, two_rows.w};
  float additions[4] = {added.x, added.y, added.z, added.w};
  if (segments) Segments::close(additions, *segments, column, row);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    p[e] = probability(p[e] * to_log2 + additions[e], lse_of[e % 2]);
    ds[e] = p[e] * (ds[e] - delta_of[e % 2]);
  }
}

// A warp's sixteen columns of a window: sums of dk and dv, dS in shared memory, and dS added to the mask's sums.
// `segments` are null where the window has only one.
template <typename T, int groups, Makes makes, typename Segments, typename MaskSums>
__device__ void differentiate_window(RowSums& dk, RowSums& dv, unsigned char* ds_of_window, MaskSums& mask_sums,
                                     const WindowTileSet& tiles, const WindowAdditions<groups>& added_by_mask,
                                     const float2* constants, const typename Segments::Numbers* segments, float to_log2,
                                     const WindowPlaces& places) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
  const int column = 16 * warp + lane / 4;  // and 8 more
  EightRows keys[2], values[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    keys[half] = places.rows(tiles[K], 2 * warp + half);
    values[half] = places.rows(tiles[V], 2 * warp + half);
  }
#pragma unroll
  for (int tile = 0; tile < window_tiles; ++tile) {
    float p[2][4] = {}, ds[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = 2 * tile + half;
      if (group >= groups) break;
      add_products<T>(p[half], keys, places.rows(tiles[Q], group));
      add_products<T>(ds[half], values, places.rows(tiles[Dy], group));
      differentiate_eight_rows<Segments>(p[half], ds[half], group, column, added_by_mask.at(group, lane), constants,
                                         segments, to_log2);
      if constexpr (makes_mask_grad(makes))
#pragma unroll
        for (int e = 0; e < 4; ++e) mask_sums[group][e] += ds[half][e];
    }
    if constexpr (makes_operand_grads(makes)) {
      const LeftFragment gradients = rounded<T>(ds, 0);
      places.add_rows<T>(dv, rounded<T>(p, 0), tiles[Dy], tile);
      places.add_rows<T>(dk, gradients, tiles[Q], tile);
      // Eight rows of eight columns each, a thread's two rows of one column.
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(ds_of_window + place_in_ds(column + i % 2 * 8, 2 * tile + i / 2) + 4 * t) =
            gradients.at[i];
    }
  }
}

// dq of a warp's sixteen rows, once dS has come together.
template <typename T>
__device__ void add_window_dq(RowSums& dq, const unsigned char* ds_of_window, const unsigned char* k_tile,
                              const WindowPlaces& places) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned char* const from = ds_of_window + place_in_ds(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
  for (int tile = 0; tile < window_tiles; ++tile) {
    LeftFragment gradients;
    load_matrices_transposed(gradients.at, from + tile * 16 * 2 * max_window);
    places.add_rows<T>(dq, gradients, k_tile, tile);
  }
}

// A block's sums, [heads, rows, columns] of its part; only blocks of all heads' parts make it whole.
template <int groups>
__device__ void write_mask_sums(float* partials, const float (&sums)[groups][4], int rows, int columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  float* const out = partials + static_cast<int64_t>(blockIdx.x) * rows * columns;
#pragma unroll
  for (int i = 0; i < groups; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = 8 * i + lane % 4 * 2 + e % 2, of_column = column + e / 2 * 8;
      if (row < rows && of_column < columns) out[row * columns + of_column] = sums[i][e];
    }
}

[[nodiscard]] cudaError_t attention_grad_window_boxes(const AttentionShape& shape, const AttentionGradCall& grads,
                                                      cudaStream_t stream);
[[nodiscard]] cudaError_t attention_grads_window_boxes(const AttentionShape& shape, const AttentionGradCall& grads,
                                                       float* partials, int64_t& parts, cudaStream_t stream);

}  // namespace plimsoll::cuda
