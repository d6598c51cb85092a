#pragma once

// Where the tensors of one head lie, and what the mask and dropout do to a single score.

#include "kernels/closed_rows.h"
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

  __device__ const int64_t* segments(const AttentionShape& n) const { return n.segments + b * n.segments_step; }

  // cap(scale * product) + masks; -inf forbids and is all there is outside.
  __device__ float score(const AttentionShape& n, int64_t row, int64_t column, float product) const {
    if (row >= n.rows || column >= n.columns || (n.causal && column > row)) return -INFINITY;
    if (n.window > 0 && (column - row >= n.window || row - column >= n.window)) return -INFINITY;
    if (n.segments && segments(n)[row] != segments(n)[column]) return -INFINITY;
    float score = n.scale * product;
    if (n.softcap > 0.0f) score = n.softcap * tanhf(score / n.softcap);
    if (n.slopes) score -= n.slopes[h] * static_cast<float>(row > column ? row - column : column - row);
    if (!n.mask) return score;
    const int64_t* step = n.mask_strides;
    const int64_t at = b * step[0] + h * step[1] + row * step[2] + column * step[3];
    const float value = load_any<float>(AnyTensor{n.mask, n.mask_type}, at);
    if (n.mask_type == Scalar::Bool) return value != 0.0f ? score : -INFINITY;
    return score + value;
  }
};

// The derivative of a capped score by scale * product.
__device__ inline float cap_slope(const AttentionShape& n, float product) {
  if (n.softcap == 0.0f) return 1.0f;
  const float tangent = tanhf(n.scale * product / n.softcap);
  return 1.0f - tangent * tangent;
}

// A row's sum with its sink, and their lse. `sum` is of exp(score - largest).
struct WithSink {
  float lse, sum;

  __device__ WithSink(const Sinks& sinks, int64_t head, float largest, float sum_of_scores)
      : lse(sum_of_scores > 0.0f ? largest + logf(sum_of_scores) : -INFINITY), sum(sum_of_scores) {
    if (!sinks.of_heads) return;
    const float sink = load_any<float>(AnyTensor{sinks.of_heads, sinks.type}, head), of_scores = lse;
    const float top = fmaxf(of_scores, sink);
    if (top == -INFINITY) return;
    lse = top + logf(expf(of_scores - top) + expf(sink - top));
    if (sum > 0.0f) sum *= expf(lse - of_scores);
  }
};

// Draws which probabilities of a head dropout keeps, or of heads whose rows follow one another.
class KeptDraws {
 public:
  // Without dropout there is nothing to draw.
  __device__ KeptDraws(const AttentionShape& n, const Head& head)
      : rule_(n.dropout), row_words_(static_cast<int>((n.columns + 31) / 32)) {
    if (rule_.blocks == 0) return;
    generator_ = Philox(n.random);
    const int64_t drawn_row = (head.b * n.drawn_heads + head.h) * n.rows;
    first_ = n.random.first_block + drawn_row * row_words_ * rule_.blocks;
  }

  // Bit i is that of the row's column 32 * word + i.
  __device__ uint32_t operator()(int64_t row, int word) const {
    uint32_t kept[1];
    draw<1, 1>(kept, row, word);
    return kept[0];
  }
  // Every `step`th word of a row from `first_word` on, which share the keys of the rounds.
  template <int words, int step>
  __device__ void draw(uint32_t (&kept)[words], int64_t row, int first_word) const {
    const auto first = static_cast<uint64_t>(first_ + (row * row_words_ + first_word) * rule_.blocks);
    Philox generator = generator_;
    // Made in every loop again, the keys of the rounds take no registers.
    asm volatile("" : "+r"(generator.key_low), "+r"(generator.key_high));
#pragma unroll
    for (uint32_t& word : kept) word = ~0u;
#pragma unroll
    for (int i = 0; i < Dropout::max_bits; i += 8) {
      if (i == 4 * rule_.blocks) break;
#pragma unroll
      for (int word = 0; word < words; ++word) {
        PhiloxBlock pair[2];
        generator.blocks<dropout_rounds>(pair, first + static_cast<unsigned>(step * word * rule_.blocks + i / 4));
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) {
          const uint32_t drawn = pair[lane / 4].lanes[lane % 4];
          kept[word] = (kept[word] & drawn) | (rule_.threshold_zeros[i + lane] & (kept[word] | drawn));
        }
      }
    }
  }

 private:
  const Dropout& rule_;
  int row_words_;
  int64_t first_ = 0;
  Philox generator_;
};

// What dropout multiplies a probability of the flash kernels with.
__device__ inline float kept_factor(const AttentionShape& n, const Head& head, int64_t row, int64_t column) {
  if (n.dropout.blocks == 0) return 1.0f;
  const uint32_t word = KeptDraws(n, head)(row, static_cast<int>(column / 32));
  return word >> column % 32 & 1 ? n.dropout.factor : 0.0f;
}

}  // namespace plimsoll::cuda
