#pragma once

// Attention as exporters write it, read from its softmax on: down over masks, the cap and factors to q k^T, and up over
// guards and dropout to the product with v.

#include "passes/clean/attention_mask.h"

namespace plimsoll {

// A mask of scores: `factor` times it is added to them; or boolean and true where open, or, with `low`, boolean and
// true where a score becomes `low`.
struct MaskTerm {
  ValueId mask;
  std::optional<double> low = {};
  double factor = 1;
  Shape batch = {};  // two dims of the scores that it is for, where these have the batch in two
};

// Batch and heads may be one dimension of q, k, v and the result, and the batch may be two, as of rows of blocks.
struct AttentionMatch {
  int64_t batch, heads, rows, columns;
  ValueId q, k_transposed, v;  // [batch, heads, rows, dim], [batch, heads, dim, columns], [batch, heads, columns, dim]
  llvm::SmallVector<MaskTerm, 2> masks;
  ValueId rng = ValueId::None, sinks = ValueId::None;  // sinks have a number for each head, perhaps for each row
  llvm::SmallVector<ValueId, 1> factors =
      {};  // of scores, at most one for each head of each sample: [batch, heads, 1, 1]
  double scale = 1, softcap = 0, dropout = 0;
  int64_t dropout_id = 0;
  ClosedForm closed;
  std::optional<Tensor>
      window_segments;  // i64 [windows, rows], where samples are windows of images one after the other
  ValueId result;       // what the op replaces: [batch, heads, rows, dim]
};

std::optional<AttentionMatch> match_attention(const Graph& graph, const Node& softmax);

// A value of the match with batch and heads apart. A mask may have 1 in place of both.
ValueId with_heads_apart(Builder& b, ValueId value, const AttentionMatch& match);

// A mask with one dimension for the batch, or fewer dimensions.
ValueId with_one_batch(Builder& b, const MaskTerm& term, const AttentionMatch& match);

}  // namespace plimsoll
