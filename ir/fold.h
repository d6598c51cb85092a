#pragma once

// Replaces nodes that read only constants by their value. A value that repeats along
// a dimension is kept small, as expand(constant), and elementwise arithmetic on such
// values stays small: a mask over a batch of 8 costs what a mask over 1 costs.

#include "ir/op_def.h"

namespace plimsoll {

// A constant as the graph holds it: `base` broadcast to `shape`.
struct ConstantView {
  TensorRef base;
  Shape shape;

  bool is_expanded() const { return element_count(shape) != base->type().elements(); }
};

// For a value that is a constant, or a chain of expands of one.
std::optional<ConstantView> find_constant(const Graph& graph, ValueId value);

// All elements of a constant value, dense; null when the value is no constant.
TensorRef constant_value(const Graph& graph, ValueId value);

// `base` broadcast to `shape`, dense.
Tensor broadcast_tensor(const Tensor& base, llvm::ArrayRef<int64_t> shape);

// The shortest tensor that broadcasts to `dense`: dimensions along which all slices have equal bytes
// become 1.
Tensor collapse_repeats(Tensor dense);

struct FoldLimits {
  int64_t evaluated_elements = int64_t{64} << 20;  // operands and results of one evaluation, or its flops
  int64_t kept_elements = int64_t{16} << 20;       // stored of one result
  int64_t dense_elements = 1024;                   // results up to this size are plain constants
};

// When every operand of the node is a constant and the limits allow it, puts constants (and expands) in the
// node's place: uses and names move over and the node is erased. Gives the values that replace its results;
// none when it stays.
Result<llvm::SmallVector<ValueId, 2>> fold_node(Graph& graph, NodeId node, const FoldLimits& limits = {});

}  // namespace plimsoll
