#include "kernels/cpu/attention/attention.h"

#include "kernels/cpu/attention/block_matmul.h"
#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::cpu {

namespace {

PLIMSOLL_VECTORISED void mask_row(float* scores, MaskKind kind, const void* mask, int64_t step, int64_t n) {
  if (kind == MaskKind::Bool) {
    const auto* allowed = static_cast<const uint8_t*>(mask);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) scores[j] = allowed[j * step] ? scores[j] : -infinity;
  } else {
    const auto* added = static_cast<const float*>(mask);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) scores[j] += added[j * step];
  }
}

// Scores become cap * tanh(score / cap), and `slopes` the derivatives.
PLIMSOLL_VECTORISED void cap_row(float* scores, float* slopes, float cap, int64_t n) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const float tangent = vector_tanh(scores[j] * inverse);
    scores[j] = cap * tangent;
    slopes[j] = 1.0f - tangent * tangent;
  }
}

// `ahead`: the first column less the row.
PLIMSOLL_VECTORISED void subtract_distances(float* scores, float slope, int64_t ahead, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) scores[j] -= slope * std::fabs(static_cast<float>(ahead + j));
}

PLIMSOLL_VECTORISED void close_other_segments(float* scores, const int64_t* segments, int64_t own, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) scores[j] = segments[j] == own ? scores[j] : -infinity;
}

PLIMSOLL_VECTORISED void drop_word(float* factors, uint32_t word, float kept) {
#pragma omp simd
  for (uint32_t j = 0; j < 32; ++j) factors[j] = word >> j & 1 ? kept : 0.0f;
}

PLIMSOLL_VECTORISED void multiply_rows(float* y, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] *= x[i];
}

// The state of one block of queries while keys pass by.
struct RunningRows {
  float largest[query_block], sum[query_block];
  alignas(64) float scores[query_block * key_block];
  alignas(64) float factors[query_block * key_block];
  alignas(64) float keys[max_head_size * key_block];
  alignas(64) float out[query_block * max_head_size];
};

// Turns scores into unnormalised probabilities and rescales what the rows have gathered so far.
void absorb_scores(RunningRows& state, int64_t rows, int64_t width, int64_t value_size) {
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = state.scores + r * key_block;
    const float largest = std::max(state.largest[r], max_of(scores, width));
    if (largest == -infinity) {
      std::fill_n(scores, width, 0.0f);
      continue;
    }
    const float correction = std::exp(state.largest[r] - largest);
    exp_scaled(scores, scores, largest, 1.0f, width);
    state.sum[r] = state.sum[r] * correction + static_cast<float>(sum_of(scores, width));
    state.largest[r] = largest;
    if (correction != 1.0f) scale(state.out + r * value_size, state.out + r * value_size, correction, value_size);
  }
}

// A row's lse, and what remains of its probabilities beside its sink.
struct WithSink {
  float lse, share;

  WithSink(float lse_of_scores, const float* sink) : lse(lse_of_scores), share(1.0f) {
    if (!sink) return;
    const float largest = std::max(lse_of_scores, *sink);
    if (largest == -infinity) return;
    lse = largest + std::log(std::exp(lse_of_scores - largest) + std::exp(*sink - largest));
    share = std::exp(lse_of_scores - lse);
  }
};

void attend_block(const AttentionShape& shape, RunningRows& state, int64_t b, int64_t h, int64_t first_row, float* y,
                  float* lse, const float* q, const float* k, const float* v, const float* sink) {
  const int64_t rows = std::min(query_block, shape.rows - first_row), value_size = shape.value_size;
  const int64_t kv_head = h / (shape.heads / shape.kv_heads);
  std::fill_n(state.largest, rows, -infinity);
  std::fill_n(state.sum, rows, 0.0f);
  std::fill_n(state.out, rows * value_size, 0.0f);
  const BlockRange met = columns_met(shape, first_row, rows);
  const int64_t k_step = shape.k_step, v_step = shape.v_step;
  for (int64_t first = met.first; first < met.end; first += key_block) {
    const int64_t width = std::min(key_block, met.end - first);
    transpose_block(state.keys, key_block, k + (b * shape.columns + first) * k_step + kv_head * shape.head_size, k_step,
                    width, shape.head_size);
    const ScoreBlock block{b, h, first_row, rows, first, width};
    score_block(shape, block, q, state.keys, state.scores);
    absorb_scores(state, rows, width, value_size);
    if (shape.dropout.blocks > 0) {
      dropout_block(shape, block, state.factors);
      multiply_rows(state.scores, state.factors, rows * key_block);
    }
    add_block_matmul(state.out, value_size, {state.scores, key_block, 1},
                     v + (b * shape.columns + first) * v_step + kv_head * value_size, v_step, rows, value_size, width);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const WithSink row(state.largest[r] + std::log(state.sum[r]), sink);
    const float inverse = state.sum[r] > 0 ? row.share / state.sum[r] : 0.0f;
    scale(y + ((b * shape.rows + first_row + r) * shape.heads + h) * value_size, state.out + r * value_size, inverse,
          value_size);
    lse[(b * shape.heads + h) * shape.rows + first_row + r] = row.lse;
  }
}

}  // namespace

BlockRange columns_met(const AttentionShape& shape, int64_t first_row, int64_t rows) {
  BlockRange met{0, shape.causal ? std::min(shape.columns, first_row + rows) : shape.columns};
  if (shape.window == 0) return met;
  met.first = std::max<int64_t>(first_row - shape.window + 1, 0) / key_block * key_block;
  met.end = std::min(met.end, first_row + rows - 1 + shape.window);
  return met;
}

BlockRange rows_met(const AttentionShape& shape, int64_t first_column, int64_t columns) {
  BlockRange met{shape.causal ? first_column : 0, shape.rows};
  if (shape.window > 0) {
    met.first = std::max(met.first, first_column - shape.window + 1);
    met.end = std::min(met.end, first_column + columns - 1 + shape.window);
  }
  met.first = met.first / query_block * query_block;
  return met;
}

void score_block(const AttentionShape& shape, const ScoreBlock& block, const float* q, const float* keys, float* scores,
                 float* cap_slopes) {
  const int64_t q_step = shape.q_step;
  const float* queries = q + (block.b * shape.rows + block.first_row) * q_step + block.h * shape.head_size;
  std::fill_n(scores, block.rows * key_block, 0.0f);
  add_block_matmul(scores, key_block, {queries, q_step, 1}, keys, key_block, block.rows, block.columns,
                   shape.head_size);
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = scores + r * key_block;
    scale(row, row, shape.scale, block.columns);
    if (shape.softcap > 0) {
      alignas(64) float unread[key_block];
      cap_row(row, cap_slopes ? cap_slopes + r * key_block : unread, shape.softcap, block.columns);
    }
    if (shape.mask_kind != MaskKind::None) {
      const int64_t* strides = shape.mask_strides;
      const int64_t at = block.b * strides[0] + block.h * strides[1] + (block.first_row + r) * strides[2] +
                         block.first_column * strides[3];
      const int64_t bytes = shape.mask_kind == MaskKind::Bool ? 1 : sizeof(float);
      mask_row(row, shape.mask_kind, static_cast<const char*>(shape.mask) + at * bytes, strides[3], block.columns);
    }
    const int64_t here = block.first_row + r - block.first_column;
    if (shape.slopes) subtract_distances(row, shape.slopes[block.h], -here, block.columns);
    if (shape.segments) {
      const int64_t* segments = shape.segments + block.b * shape.segments_step;
      close_other_segments(row, segments + block.first_column, segments[block.first_row + r], block.columns);
    }
    if (!shape.causal && shape.window == 0) continue;
    const int64_t reach = shape.causal ? 1 : shape.window;  // columns before here + reach are open
    std::fill(row + std::clamp<int64_t>(here + reach, 0, block.columns), row + block.columns, -infinity);
    if (shape.window > 0) std::fill_n(row, std::clamp<int64_t>(here + 1 - shape.window, 0, block.columns), -infinity);
  }
}

void dropout_block(const AttentionShape& shape, const ScoreBlock& block, float* factors) {
  const int64_t row_words = (shape.columns + 31) / 32;
  uint32_t words[key_block / 32];
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = (block.b * shape.drawn_heads + block.h) * shape.rows + block.first_row + r;
    kept_words(shape.random, shape.dropout, row * row_words + block.first_column / 32, key_block / 32, words);
    for (int64_t i = 0; i < key_block / 32; ++i)
      drop_word(factors + r * key_block + i * 32, words[i], shape.dropout.factor);
  }
}

void attention(const AttentionShape& shape, float* y, float* lse, const float* q, const float* k, const float* v,
               const float* sinks) {
  const int64_t blocks = (shape.rows + query_block - 1) / query_block;
  const int64_t tasks = shape.batch * shape.heads * blocks;
  const int64_t work = shape.batch * shape.heads * shape.rows * shape.columns * shape.head_size / 8;
  // Later blocks see more keys when causal: dealing them out in turn balances the threads.
#pragma omp parallel for schedule(static, 1) if (tasks > 1 && work >= parallel_grain)
  for (int64_t task = 0; task < tasks; ++task) {
    RunningRows state;
    const int64_t b = task / blocks / shape.heads, h = task / blocks % shape.heads;
    attend_block(shape, state, b, h, task % blocks * query_block, y, lse, q, k, v, sinks ? sinks + h : nullptr);
  }
}

}  // namespace plimsoll::cpu
