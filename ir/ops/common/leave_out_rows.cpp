#include "ir/ops/common/leave_out_rows.h"

#include "ir/ops/common/support.h"
#include "ir/ops/norm/norm_batch.h"

#include <cassert>

namespace plimsoll {
namespace {

// One for each row, to go with values of that rank.
ValueId shaped(Builder& b, ValueId counts, int64_t rank) {
  Shape shape(static_cast<size_t>(rank), 1);
  shape[0] = b.type(counts).elements();
  return b.reshape(counts, shape);
}

// Labels of these rows become ones that the loss ignores.
void ignore_labels(Builder& b, ValueId counts, ValueId& labels, Attrs& attrs) {
  constexpr int64_t ignored = -100;  // as PyTorch has it; no class has a negative number
  if (!attrs.has("ignore_index")) attrs.set("ignore_index", ignored);
  labels = b.cast(labels, DType::I64);
  labels = b.emit("where", {shaped(b, counts, b.type(labels).rank()), labels,
                            b.constant(Tensor::scalar_int(attrs.get_int("ignore_index")))});
}

// Rows of zeros add nothing to a sum.
void clear(Builder& b, ValueId counts, ValueId& x) {
  const Type type = b.type(x);
  x = b.emit("where", {shaped(b, counts, type.rank()), x, b.scalar(0, type.dtype)});
}

}  // namespace

bool may_leave_out_rows(const OpDef& op) {
  return op.is_loss_over_classes() || &op == &op_reduce_sum || &op == &op_reduce_mean || &op == &op_batch_norm;
}

void leave_out_rows(Builder& b, const OpDef& op, ValueId counts, llvm::MutableArrayRef<ValueId> operands,
                    Attrs& attrs) {
  assert(may_leave_out_rows(op));
  if (op.is_loss_over_classes())
    ignore_labels(b, counts, operands[op.operand(op.class_labels)], attrs);
  else
    clear(b, counts, operands[0]);
}

llvm::SmallVector<ValueId, 4> across_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                   int64_t ranks, Statistics statistics) {
  assert(node.op == &op_batch_norm);
  return statistics == Statistics::OfOwnRows ? batch_norm_of_own_counting_rows(b, node, rows, ranks)
                                             : batch_norm_of_counting_rows(b, node, rows, ranks);
}

}  // namespace plimsoll
