#include "ir/additive.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

struct OpOperand {
  llvm::StringLiteral op, operand;
};

// Beside gradients of results and what the records say (OpDef::linear).
constexpr OpOperand additive[] = {
    {"linear", "x"},  {"linear", "w"},     {"linear_dw", "x"},   {"matmul", "a"}, {"matmul", "b"},
    {"dropout", "x"}, {"reduce_sum", "x"}, {"reduce_mean", "x"}, {"slice", "x"},  {"transpose", "x"},
};
// Beside elementwise ops of one operand, divisors, and what optimizers read as a gradient.
constexpr OpOperand not_additive[] = {
    {"rms_norm", "x"},    {"layer_norm", "x"}, {"softmax", "x"},   {"cross_entropy", "logits"},
    {"sum_squares", "x"}, {"attention", "q"},  {"attention", "k"},
};

bool is_among(llvm::ArrayRef<OpOperand> pairs, const OpDef& op, llvm::StringRef operand) {
  return llvm::any_of(pairs, [&](const OpOperand& each) { return each.op == op.name && each.operand == operand; });
}

}  // namespace

bool is_gradient_of_result(const OpDef& op, size_t operand) {
  if (operand >= op.operands.size()) return false;
  return op.operands[operand].name == "dy" || op.operands[operand].name == "dloss";
}

Additive additive_in(const OpDef& op, size_t operand) {
  const llvm::StringRef name = operand < op.operands.size() ? op.operands[operand].name : llvm::StringRef();
  const bool is_rounded = op.name.contains("f8");
  if (is_among(additive, op, name)) return Additive::Yes;
  if (is_among(not_additive, op, name) || name == "grad") return Additive::No;
  switch (op.linear) {
    case Linear::InAll: return op.max_operands() == 1 ? Additive::Yes : Additive::Unknown;
    case Linear::InOne: return Additive::Yes;
    case Linear::InFirst: return operand == 0 ? Additive::Yes : Additive::No;
    case Linear::No: break;
  }
  if (op.is_view() && operand == 0) return Additive::Yes;
  if (is_gradient_of_result(op, operand) && !is_rounded) return Additive::Yes;
  if (!op.elementwise || op.max_operands() != 1 || is_rounded) return Additive::Unknown;
  return op.moves_elements ? Additive::Yes : Additive::No;
}

}  // namespace plimsoll
