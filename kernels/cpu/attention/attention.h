#pragma once

// Scaled dot-product attention that never holds the score matrix: blocks of keys pass by blocks of
// queries with a running maximum and sum (Rabe and Staats 2021; Dao et al. 2022).

#include "kernels/cpu/common/philox.h"

#include <cstdint>

namespace plimsoll::cpu {

enum class MaskKind : uint8_t { None, Bool, Float };

// Tensors: q [batch, rows, heads * head_size], k [batch, columns, kv_heads * head_size],
// v [batch, columns, kv_heads * value_size], y [batch, rows, heads * value_size], lse [batch, heads, rows]. Rows of q,
// k and v, and of their gradients, are so many elements apart: they may stand side by side in one tensor.
struct AttentionShape {
  int64_t batch, rows, columns, heads, kv_heads, head_size, value_size;
  int64_t q_step, k_step, v_step;
  float scale;
  bool causal;
  int64_t window = 0;  // columns so far from the row, or farther, are closed; 0: none
  MaskKind mask_kind = MaskKind::None;
  const void* mask = nullptr;
  int64_t mask_strides[4] = {};  // of batch, head, row, column; 0 where the mask is broadcast
  Dropout dropout;
  int64_t drawn_heads = 0;  // a sample draws numbers for so many heads, of which these are some
  RandomStream random;
  float softcap = 0;                  // scores s become softcap * tanh(s / softcap) before masks; 0: they stay
  const float* slopes = nullptr;      // [heads] what a score loses per step between its row and column
  const int64_t* segments = nullptr;  // [1 or batch, rows] a row sees the columns with its own number
  int64_t segments_step = 0;          // of batch; 0: the same for all
};

// Block sizes. A block's buffers live on the stack, hence the limit on head sizes.
inline constexpr int64_t query_block = 48, key_block = 64, max_head_size = 256;

// `sinks` [heads] or null: one more score of each row, with a value of 0.
void attention(const AttentionShape& shape, float* y, float* lse, const float* q, const float* k, const float* v,
               const float* sinks);

// `row_products` has room for [batch, heads, rows].
void attention_grad(const AttentionShape& shape, float* dq, float* dk, float* dv, const float* q, const float* k,
                    const float* v, const float* y, const float* lse, const float* dy, float* row_products);

// Of a float mask, as it lies; `row_products` as above.
void attention_mask_grad(const AttentionShape& shape, float* dmask, int64_t mask_elements, const float* q,
                         const float* k, const float* v, const float* y, const float* lse, const float* dy,
                         float* row_products);

// y and dy [batch, rows, heads * value_size].
struct SinksShape {
  int64_t batch, rows, heads, value_size;
};
void attention_sinks_grad(const SinksShape& shape, float* dsinks, const float* y, const float* lse, const float* dy,
                          const float* sinks);

// Both directions compute one block of scores, scaled and masked. Columns past `columns` of the
// tensor and forbidden ones are -infinity. `keys` is the transposed block of k, [head_size, key_block].
struct ScoreBlock {
  int64_t b, h, first_row, rows, first_column, columns;
};
// Where scores are capped, cap_slopes [rows, key_block] become the cap's derivatives, unless null.
// What blocks of the other side a block may meet: from `first`, at a border of blocks, to before `end`.
struct BlockRange {
  int64_t first, end;
};
BlockRange columns_met(const AttentionShape& shape, int64_t first_row, int64_t rows);
BlockRange rows_met(const AttentionShape& shape, int64_t first_column, int64_t columns);

void score_block(const AttentionShape& shape, const ScoreBlock& block, const float* q, const float* keys, float* scores,
                 float* cap_slopes = nullptr);
// What dropout multiplies probabilities with: kept ones with its factor, the others with 0. factors[rows, key_block].
void dropout_block(const AttentionShape& shape, const ScoreBlock& block, float* factors);

}  // namespace plimsoll::cpu
