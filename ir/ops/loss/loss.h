#pragma once

// The losses over class labels share this: rows of classes, labels that may be ignored,
// class weights, and the three reductions.

#include "ir/ops/common/reference_math.h"

namespace plimsoll {

inline constexpr AttrSpec ignore_index_attr{"ignore_index", AttrKind::Int, AttrNeed::Optional};
inline constexpr AttrSpec reduction_attr{"reduction", "mean"};

// Only the first {classes} scores of a row [C] count; the rest is padding that makes matmuls faster, is never read and
// takes no gradient.
inline constexpr AttrSpec classes_attr{"classes", AttrKind::Int, AttrNeed::Optional};

// Scores [N, C, d...] as rows of classes, one row per element of [N, d...]; C counts the padding too.
struct ClassRows {
  int64_t outer, stored, inner, classes;

  explicit ClassRows(llvm::ArrayRef<int64_t> scores, const Attrs& attrs = {});
  size_t count() const { return static_cast<size_t>(outer * inner); }
  size_t at(int64_t row, int64_t c) const {
    return static_cast<size_t>((row / inner * stored + c) * inner + row % inner);
  }
};

// Labels and class weights must fit scores of that shape, the reduction must exist.
Status need_classified(const OpCall& call, llvm::ArrayRef<int64_t> scores);
// A scalar, or one loss per row with reduction "none".
Shape loss_shape(const OpCall& call, llvm::ArrayRef<int64_t> rows);

// The row's label; none when it is {ignore_index}, an error when it names no class.
Result<std::optional<int64_t>> label_of(const OpCall& call, const TensorView& labels, int64_t row, int64_t classes);
inline double class_weight(const std::vector<double>& weights, int64_t c) {
  return weights.empty() ? 1 : weights[static_cast<size_t>(c)];
}
void store_loss(const ReferenceCall& call, llvm::ArrayRef<double> losses, double total_weight);
// The gradient of one row's loss: dloss with the reduction undone.
double row_gradient(const ReferenceCall& call, double total_weight, int64_t row);

// Combines the chunks' losses by {reduction}; sums of chunks make a mean over the labels' weights.
ChunkCall chunk_of_loss(const OpCall& call, std::initializer_list<Combine> other_results);
// The weight of all labels that count.
ValueId label_weight(Builder& b, NodeId node);

// An exponential and a few operations on each score.
double logits_flops(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
