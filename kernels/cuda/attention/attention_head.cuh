#pragma once

// Where the tensors of one head lie, and what the mask and dropout do to a single score.

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/philox.cuh"

namespace plimsoll::cuda {

// One head of one batch element.
struct Head {
  int64_t b, h;

  __device__ int64_t lse(const AttentionShape& n, int64_t row) const { return (b * n.heads + h) * n.rows + row; }
  __device__ int64_t kv_head(const AttentionShape& n) const { return h / (n.heads / n.kv_heads); }
  __device__ int64_t q(const AttentionShape& n) const { return b * n.rows * n.q_step + h * n.depth; }
  __device__ int64_t k(const AttentionShape& n) const { return b * n.columns * n.k_step + kv_head(n) * n.depth; }
  __device__ int64_t v(const AttentionShape& n) const { return b * n.columns * n.v_step + kv_head(n) * n.value_depth; }
  __device__ int64_t y(const AttentionShape& n) const { return (b * n.rows * n.heads + h) * n.value_depth; }

  // scale * product + mask; -inf forbids and is all there is outside.
  __device__ float score(const AttentionShape& n, int64_t row, int64_t column, float product) const {
    if (row >= n.rows || column >= n.columns || (n.causal && column > row)) return -INFINITY;
    if (n.window > 0 && (column - row >= n.window || row - column >= n.window)) return -INFINITY;
    const float score = n.scale * product;
    if (!n.mask) return score;
    const int64_t* step = n.mask_strides;
    const int64_t at = b * step[0] + h * step[1] + row * step[2] + column * step[3];
    const float value = load_any<float>(AnyTensor{n.mask, n.mask_type}, at);
    if (n.mask_type == Scalar::Bool) return value != 0.0f ? score : -INFINITY;
    return score + value;
  }

  // Dropout multiplies a probability with this.
  __device__ float keep(const AttentionShape& n, int64_t row, int64_t column) const {
    if (n.dropout == 0) return 1.0f;
    const int64_t drawn_row = (b * n.drawn_heads + h) * n.rows + row;
    const int64_t half = 4 * n.random.first_block + drawn_row * n.columns + column, word = half % 8 / 2;
    const PhiloxBlock block = Philox(n.random)(half / 8);
    const uint32_t low = word % 2 ? block.lanes[1] : block.lanes[0];
    const uint32_t high = word % 2 ? block.lanes[3] : block.lanes[2];
    const bool kept = ((word < 2 ? low : high) >> half % 2 * 16 & 0xffff) * 0x1p-16 >= n.dropout;
    return kept ? static_cast<float>(1 / (1 - n.dropout)) : 0.0f;
  }
};

}  // namespace plimsoll::cuda
