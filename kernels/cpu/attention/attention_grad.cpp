#include "kernels/closed_rows.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/block_matmul.h"
#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>
#include <cmath>

// Backward recomputes each block of probabilities from lse. One task owns one key head of one batch
// element with all query heads that read it, so dk, dv and dq are each added to by one thread in one order.

namespace plimsoll::cpu {

namespace {

struct GradBlocks {
  alignas(64) float keys[max_head_size * key_block];    // transposed, [head_size, key_block]
  alignas(64) float values[max_head_size * key_block];  // transposed, [value_size, key_block]
  alignas(64) float scores[query_block * key_block];    // then probabilities, then their gradient
  alignas(64) float dropped[query_block * key_block];   // probabilities as dropout left them
  alignas(64) float d_scores[query_block * key_block];
  alignas(64) float cap_slopes[query_block * key_block];  // where scores are capped: the cap's derivatives
};

struct GradTensors {
  float *dq, *dk, *dv;
  const float *q, *k, *v, *y, *lse, *dy;
  float* row_products;
};

PLIMSOLL_VECTORISED void probabilities(float* p, const float* scores, float lse, int64_t n) {
  const float shift = lse > closed_lse ? lse : infinity;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) p[j] = vector_exp(scores[j] - shift);
}

// d_scores = p * (d_p - row_product) * factor
PLIMSOLL_VECTORISED void score_gradient(float* d_scores, const float* p, float row_product, float factor, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) d_scores[j] = p[j] * (d_scores[j] - row_product) * factor;
}

PLIMSOLL_VECTORISED void multiply_into(float* y, const float* a, const float* b, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

// Probabilities into blocks.scores, the dropped ones into blocks.dropped, their gradients into
// blocks.d_scores.
void recompute_block(const AttentionShape& shape, const GradTensors& t, const ScoreBlock& block, GradBlocks& blocks) {
  const int64_t dy_step = shape.heads * shape.value_size, head_row = (block.b * shape.heads + block.h) * shape.rows;
  score_block(shape, block, t.q, blocks.keys, blocks.scores, blocks.cap_slopes);
  std::fill_n(blocks.d_scores, block.rows * key_block, 0.0f);
  const float* dy = t.dy + (block.b * shape.rows + block.first_row) * dy_step + block.h * shape.value_size;
  add_block_matmul(blocks.d_scores, key_block, {dy, dy_step, 1}, blocks.values, key_block, block.rows, block.columns,
                   shape.value_size);
  if (shape.dropout.blocks > 0) {
    dropout_block(shape, block, blocks.dropped);
    for (int64_t at = 0; at < block.rows * key_block; at += key_block)
      multiply_into(blocks.d_scores + at, blocks.d_scores + at, blocks.dropped + at, block.columns);
  }
  for (int64_t r = 0; r < block.rows; ++r) {
    float *p = blocks.scores + r * key_block, *dropped = blocks.dropped + r * key_block;
    const int64_t row = head_row + block.first_row + r;
    probabilities(p, p, t.lse[row], block.columns);
    if (shape.dropout.blocks > 0)
      multiply_into(dropped, dropped, p, block.columns);
    else
      std::copy_n(p, block.columns, dropped);
    score_gradient(blocks.d_scores + r * key_block, p, t.row_products[row], shape.scale, block.columns);
  }
}

// The gradients of scores become those of scale * q k^T.
void pass_cap(const AttentionShape& shape, const ScoreBlock& block, GradBlocks& blocks) {
  if (shape.softcap == 0) return;
  for (int64_t at = 0; at < block.rows * key_block; at += key_block)
    multiply_into(blocks.d_scores + at, blocks.d_scores + at, blocks.cap_slopes + at, block.columns);
}

void add_block_grads(const AttentionShape& shape, const GradTensors& t, const ScoreBlock& block, int64_t kv_head,
                     const GradBlocks& blocks) {
  const int64_t q_step = shape.q_step, k_step = shape.k_step, v_step = shape.v_step;
  const int64_t dy_step = shape.heads * shape.value_size;
  const int64_t row = block.b * shape.rows + block.first_row, column = block.b * shape.columns + block.first_column;
  const int64_t q_at = row * q_step + block.h * shape.head_size, k_at = column * k_step + kv_head * shape.head_size;
  add_block_matmul(t.dv + column * v_step + kv_head * shape.value_size, v_step, {blocks.dropped, 1, key_block},
                   t.dy + row * dy_step + block.h * shape.value_size, dy_step, block.columns, shape.value_size,
                   block.rows);
  add_block_matmul(t.dk + k_at, k_step, {blocks.d_scores, 1, key_block}, t.q + q_at, q_step, block.columns,
                   shape.head_size, block.rows);
  add_block_matmul(t.dq + q_at, q_step, {blocks.d_scores, key_block, 1}, t.k + k_at, k_step, block.rows,
                   shape.head_size, block.columns);
}

void clear_rows(float* x, int64_t step, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(x + r * step, width, 0.0f);
}

// sum_d y * dy of every row of one head: what the softmax gradient subtracts.
void head_row_products(const AttentionShape& shape, const GradTensors& t, int64_t b, int64_t h) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    const int64_t at = ((b * shape.rows + i) * shape.heads + h) * shape.value_size;
    t.row_products[(b * shape.heads + h) * shape.rows + i] =
        static_cast<float>(dot(t.y + at, t.dy + at, shape.value_size));
  }
}

void key_head_grad(const AttentionShape& shape, const GradTensors& t, int64_t b, int64_t kv_head, GradBlocks& blocks) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t q_step = shape.q_step, k_step = shape.k_step, v_step = shape.v_step;
  const int64_t k_at = b * shape.columns * k_step + kv_head * shape.head_size;
  const int64_t v_at = b * shape.columns * v_step + kv_head * shape.value_size;
  clear_rows(t.dk + k_at, k_step, shape.columns, shape.head_size);
  clear_rows(t.dv + v_at, v_step, shape.columns, shape.value_size);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    clear_rows(t.dq + b * shape.rows * q_step + h * shape.head_size, q_step, shape.rows, shape.head_size);
    head_row_products(shape, t, b, h);
  }
  for (int64_t first = 0; first < shape.columns; first += key_block) {
    const int64_t width = std::min(key_block, shape.columns - first);
    transpose_block(blocks.keys, key_block, t.k + k_at + first * k_step, k_step, width, shape.head_size);
    transpose_block(blocks.values, key_block, t.v + v_at + first * v_step, v_step, width, shape.value_size);
    const BlockRange met = rows_met(shape, first, width);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
      for (int64_t i = met.first; i < met.end; i += query_block) {
        const ScoreBlock block{b, h, i, std::min(query_block, met.end - i), first, width};
        recompute_block(shape, t, block, blocks);
        pass_cap(shape, block, blocks);
        add_block_grads(shape, t, block, kv_head, blocks);
      }
  }
}

// Adds the gradients of a block's scores to those of the mask.
void add_mask_grads(const AttentionShape& shape, const ScoreBlock& block, const GradBlocks& blocks, float* dmask) {
  const int64_t* step = shape.mask_strides;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = dmask + block.b * step[0] + block.h * step[1] + (block.first_row + r) * step[2];
    for (int64_t c = 0; c < block.columns; ++c)
      row[(block.first_column + c) * step[3]] += blocks.d_scores[r * key_block + c] / shape.scale;
  }
}

void head_mask_grad(const AttentionShape& shape, const GradTensors& t, int64_t b, int64_t h, GradBlocks& blocks,
                    float* dmask) {
  const int64_t kv_head = h / (shape.heads / shape.kv_heads);
  const float* keys = t.k + b * shape.columns * shape.k_step + kv_head * shape.head_size;
  const float* values = t.v + b * shape.columns * shape.v_step + kv_head * shape.value_size;
  head_row_products(shape, t, b, h);
  for (int64_t first = 0; first < shape.columns; first += key_block) {
    const int64_t width = std::min(key_block, shape.columns - first);
    transpose_block(blocks.keys, key_block, keys + first * shape.k_step, shape.k_step, width, shape.head_size);
    transpose_block(blocks.values, key_block, values + first * shape.v_step, shape.v_step, width, shape.value_size);
    const BlockRange met = rows_met(shape, first, width);
    for (int64_t i = met.first; i < met.end; i += query_block) {
      const ScoreBlock block{b, h, i, std::min(query_block, met.end - i), first, width};
      recompute_block(shape, t, block, blocks);
      add_mask_grads(shape, block, blocks, dmask);
    }
  }
}

}  // namespace

void attention_grad(const AttentionShape& shape, float* dq, float* dk, float* dv, const float* q, const float* k,
                    const float* v, const float* y, const float* lse, const float* dy, float* row_products) {
  const GradTensors tensors{dq, dk, dv, q, k, v, y, lse, dy, row_products};
  const int64_t tasks = shape.batch * shape.kv_heads;
  const int64_t work = shape.batch * shape.heads * shape.rows * shape.columns * shape.head_size / 8;
  parallel_tasks(tasks, work, [&](int64_t task) {
    GradBlocks blocks;
    key_head_grad(shape, tensors, task / shape.kv_heads, task % shape.kv_heads, blocks);
  });
}

// A task owns what heads of one number add to: all of the mask where it is the same for them.
void attention_mask_grad(const AttentionShape& shape, float* dmask, int64_t mask_elements, const float* q,
                         const float* k, const float* v, const float* y, const float* lse, const float* dy,
                         float* row_products) {
  const GradTensors tensors{nullptr, nullptr, nullptr, q, k, v, y, lse, dy, row_products};
  const int64_t tasks = shape.mask_strides[1] != 0 ? shape.heads : 1;
  const int64_t work = shape.batch * shape.heads * shape.rows * shape.columns * shape.head_size / 8;
  std::fill_n(dmask, mask_elements, 0.0f);
  parallel_tasks(tasks, work, [&](int64_t task) {
    GradBlocks blocks;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t h = task; h < shape.heads; h += tasks) head_mask_grad(shape, tensors, b, h, blocks, dmask);
  });
}

// A sink's probability is exp(sink - lse); its value is 0, so that only the mean of the others' gradients reaches it.
void attention_sinks_grad(const SinksShape& shape, float* dsinks, const float* y, const float* lse, const float* dy,
                          const float* sinks) {
  const int64_t work = shape.batch * shape.rows * shape.heads * shape.value_size;
  parallel_tasks(shape.heads, work, [&](int64_t h) {
    double sum = 0;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t r = 0; r < shape.rows; ++r) {
        const int64_t at = ((b * shape.rows + r) * shape.heads + h) * shape.value_size;
        const float lse_here = lse[(b * shape.heads + h) * shape.rows + r];
        if (lse_here > -infinity) sum -= std::exp(sinks[h] - lse_here) * dot(y + at, dy + at, shape.value_size);
      }
    dsinks[h] = static_cast<float>(sum);
  });
}

}  // namespace plimsoll::cpu
