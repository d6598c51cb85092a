#include "passes/clean/simplify_rules.h"

// These rules remove arithmetic with a neutral element, powers that are squares, products of one term, casts that lose
// nothing on the way, and choices between equal or known sides.

#include "ir/fold.h"

namespace plimsoll {
namespace {

bool has_type_of_result(Builder& b, const Node& node, ValueId value) {
  return b.type(value) == b.type(node.results[0]);
}

// Does every element of the constant have this value? Repeated elements are stored once, so large masks are quick to
// ask.
bool is_constant_of(const Graph& graph, ValueId value, double wanted) {
  std::optional<ConstantView> view = find_constant(graph, value);
  if (!view) return false;
  for (int64_t i = 0; i < view->base->type().elements(); ++i)
    if (view->base->get(i) != wanted) return false;
  return true;
}

ValueId without_neutral(Builder& b, const Node& node, size_t operand, double neutral) {
  ValueId other = node.operands[1 - operand];
  bool neutral_there = has_type_of_result(b, node, other) && is_constant_of(b.graph(), node.operands[operand], neutral);
  return neutral_there ? other : ValueId::None;
}

ValueId either_neutral(Builder& b, const Node& node, double neutral) {
  ValueId left = without_neutral(b, node, 0, neutral);
  return left != ValueId::None ? left : without_neutral(b, node, 1, neutral);
}

ValueId add(Builder& b, const Node& node) { return either_neutral(b, node, 0); }
ValueId mul(Builder& b, const Node& node) { return either_neutral(b, node, 1); }
ValueId sub(Builder& b, const Node& node) { return without_neutral(b, node, 1, 0); }
ValueId div(Builder& b, const Node& node) { return without_neutral(b, node, 1, 1); }

// Squares are products, which take one instruction.
ValueId pow(Builder& b, const Node& node) {
  ValueId x = operand_of(node, "a");
  if (has_type_of_result(b, node, x) && is_constant_of(b.graph(), operand_of(node, "b"), 2))
    return b.emit("mul", {x, x});
  return without_neutral(b, node, 1, 1);
}

// The op undoes itself: neg(neg(x)) is x.
ValueId involution(Builder& b, const Node& node) { return value_below(b.graph(), node.operands[0], node.op->name); }

struct Range {
  int significant_bits;  // integers: without the sign
  int low_exponent, high_exponent;
  bool is_signed;
};

Range range_of(DType dtype) {
  switch (dtype) {
    case DType::F64: return {53, -1074, 1024, true};
    case DType::F32: return {24, -149, 128, true};
    case DType::BF16: return {8, -133, 128, true};
    case DType::F16: return {11, -24, 16, true};
    case DType::F8E4M3: return {4, -9, 9, true};
    case DType::F8E5M2: return {3, -16, 16, true};
    case DType::Bool: return {1, 0, 1, false};
    default: break;
  }
  int bits = static_cast<int>(dtype_bytes(dtype)) * 8 - (is_signed_integer(dtype) ? 1 : 0);
  return {bits, 0, bits, is_signed_integer(dtype)};
}

// Does every value of `from` have its exact counterpart in `to`? E4M3 has no infinity to pass on or to lose.
bool holds_exactly(DType from, DType to) {
  if (from == to) return true;
  if (to == DType::Bool || to == DType::F8E4M3 || (is_float(from) && !is_float(to))) return false;
  Range small = range_of(from), large = range_of(to);
  return small.significant_bits <= large.significant_bits && small.low_exponent >= large.low_exponent &&
         small.high_exponent <= large.high_exponent && (large.is_signed || !small.is_signed);
}

ValueId cast(Builder& b, const Node& node) {
  ValueId x = node.operands[0];
  DType to = b.type(node.results[0]).dtype, from = b.type(x).dtype;
  if (from == to) return x;
  const ValueId below = value_below(b.graph(), x, "cast");
  if (below == ValueId::None || !holds_exactly(b.type(below).dtype, from)) return ValueId::None;
  return b.cast(below, to);
}

ValueId where(Builder& b, const Node& node) {
  ValueId condition = operand_of(node, "condition"), yes = operand_of(node, "a"), no = operand_of(node, "b");
  ValueId chosen = yes == no || is_constant_of(b.graph(), condition, 1) ? yes
                   : is_constant_of(b.graph(), condition, 0)            ? no
                                                                        : ValueId::None;
  if (chosen == ValueId::None) return chosen;
  const Shape shape = b.type(node.results[0]).shape;
  return b.expand(chosen, shape);
}

ValueId clip(Builder&, const Node& node) {
  return node.attrs.has("min") || node.attrs.has("max") ? ValueId::None : node.operands[0];
}

ValueId dropout(Builder&, const Node& node) {
  return node.attrs.get_float("ratio") == 0 ? node.operands[0] : ValueId::None;
}

// A reduction over dimensions of size 1, or over none, leaves the elements as they are.
ValueId reduce(Builder& b, const Node& node) {
  ValueId x = node.operands[0];
  const Type result = b.type(node.results[0]);
  bool same_elements = b.type(x).elements() == result.elements() && result.elements() > 0;
  for (int64_t axis : node.attrs.get_ints("axes")) same_elements &= b.type(x).shape[axis] == 1;
  return same_elements && b.type(x).dtype == result.dtype ? b.reshape(x, result.shape) : ValueId::None;
}

// A product of columns with rows adds nothing up: it is elementwise.
ValueId matmul(Builder& b, const Node& node) {
  const bool turned_a = node.attrs.get_int("transpose_a") != 0, turned_b = node.attrs.get_int("transpose_b") != 0;
  ValueId column = operand_of(node, "a"), row = operand_of(node, "b");
  Shape left = b.type(column).shape, right = b.type(row).shape;
  if (left.size() < 2 || right.size() < 2 || left[left.size() - (turned_a ? 2 : 1)] != 1) return ValueId::None;
  if (turned_a) std::swap(left[left.size() - 1], left[left.size() - 2]);
  if (turned_b) std::swap(right[right.size() - 1], right[right.size() - 2]);
  return b.emit("mul", {b.reshape(column, left), b.reshape(row, right)});
}

ValueId add_n(Builder&, const Node& node) { return node.operands.size() == 1 ? node.operands[0] : ValueId::None; }

constexpr SimplifyEntry rules[] = {
    {"add", add},           {"mul", mul},           {"sub", sub},
    {"div", div},           {"pow", pow},           {"neg", involution},
    {"not", involution},    {"cast", cast},         {"where", where},
    {"clip", clip},         {"dropout", dropout},   {"add_n", add_n},
    {"matmul", matmul},     {"reduce_sum", reduce}, {"reduce_mean", reduce},
    {"reduce_max", reduce}, {"reduce_min", reduce}, {"reduce_prod", reduce},
};

}  // namespace

llvm::ArrayRef<SimplifyEntry> arithmetic_rules() { return rules; }

}  // namespace plimsoll
