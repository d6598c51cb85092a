#pragma once

// The records of network ops (matmuls, windows, norms, attention, losses) share this beyond support.h: references work
// on plain vectors of double.

#include "ir/ops/common/layout.h"
#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"

#include <vector>

namespace plimsoll {

// An absent operand passes.
Status need_shape(const OpCall& call, PortKey operand, llvm::ArrayRef<int64_t> shape);
Status need_rank_between(const OpCall& call, PortKey operand, int64_t low, int64_t high);
inline Status need_min_rank(const OpCall& call, PortKey operand, int64_t low) {
  return need_rank_between(call, operand, low, INT64_MAX);
}

// Fails when a gradient flows into any result but the first; `others` says what those are.
Status need_only_first_gradient(const GradContext& g, llvm::StringRef others);

// Ops that backward passes are made of have this.
inline constexpr Gradient no_second_derivative =
    Gradient::missing("it belongs to a backward pass, and second derivatives are not derived");

// Sums over everything but the channels, which stand where the attributes of an op say: what a per-channel parameter
// gets.
ValueId channel_sum(Builder& b, ValueId dy, const Attrs& attrs);

// Each matrix of rows x columns turned over, so that inner loops run along memory.
template <typename T>
std::vector<T> transposed(const std::vector<T>& matrices, int64_t rows, int64_t columns) {
  std::vector<T> out(matrices.size());
  auto size = static_cast<size_t>(rows * columns);
  for (size_t base = 0; base < matrices.size(); base += size)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[base + c * rows + r] = matrices[base + r * columns + c];
  return out;
}

// {shape} with its first dimension taken from operand 0 after the batch changed.
Result<Attrs> shape_attr_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after);

}  // namespace plimsoll
