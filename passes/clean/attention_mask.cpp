#include "passes/clean/attention_mask.h"

#include <cmath>

namespace plimsoll {
namespace {

constexpr double closed_from = -1e4;  // added to a score, numbers from here down leave nothing of a probability
constexpr int max_depth = 16;         // of the arithmetic behind a mask

struct MaskTaker {
  Builder b;
  int64_t rows, columns;

  const Graph& graph() { return b.graph(); }

  // The value that `value` broadcasts from.
  ValueId narrowed(ValueId value, int depth = 0) {
    const NodeId producer = graph().value(value).producer;
    if (producer == NodeId::None || depth > max_depth) return value;
    const Node& node = graph().node(producer);
    if (node.op->name == "expand") return narrowed(node.operands[0], depth + 1);
    if (!node.op->elementwise || node.results.size() != 1) return value;
    llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
    for (ValueId& operand : operands)
      if (operand != ValueId::None) operand = narrowed(operand, depth + 1);
    if (llvm::makeArrayRef(operands) == llvm::makeArrayRef(graph().node(producer).operands)) return value;
    return emit_like(producer, operands, value);
  }

  // None stands for a mask that is open everywhere.
  OpenMask take(ValueId mask, int depth = 0) {
    mask = boolean_behind(graph(), mask);
    const ConstantMask kind = classify_mask(graph(), mask, rows, columns);
    if (kind != ConstantMask::Other) return {ValueId::None, kind == ConstantMask::Causal};
    const NodeId producer = graph().value(mask).producer;
    if (producer == NodeId::None || depth > max_depth) return {mask};
    const Node& node = graph().node(producer);
    const bool is_sum = node.op->name == "add" && is_float(graph().type(mask).dtype);
    if (node.op->name == "and" || is_sum) return take_pair(producer, mask, depth);
    if (node.op->name != "where" || !is_splat(graph(), node.operands[1], 0, 0)) return {mask};
    const std::optional<double> closed = splat_value(graph(), node.operands[2]);
    if (!closed || *closed > closed_from) return {mask};
    const ValueId zero = node.operands[1], low = node.operands[2];
    OpenMask inner = take(node.operands[0], depth + 1);
    if (inner.rest == ValueId::None || inner.rest == graph().node(producer).operands[0])
      return {inner.rest == ValueId::None ? inner.rest : mask, inner.causal};
    return {emit_like(producer, {inner.rest, zero, low}, mask), inner.causal};
  }

 private:
  OpenMask take_pair(NodeId producer, ValueId mask, int depth) {
    const ValueId first = graph().node(producer).operands[0], second = graph().node(producer).operands[1];
    const OpenMask left = take(first, depth + 1), right = take(second, depth + 1);
    const bool causal = left.causal || right.causal;
    if (left.rest == ValueId::None || right.rest == ValueId::None)
      return {left.rest == ValueId::None ? right.rest : left.rest, causal};
    if (left.rest == first && right.rest == second) return {mask, causal};
    // What a sum adds may have become boolean.
    if (graph().type(left.rest).dtype != graph().type(right.rest).dtype) return {mask, false};
    const bool chooses = graph().type(left.rest).dtype == DType::Bool;
    return {b.emit(chooses ? "and" : "add", {left.rest, right.rest}), causal};
  }

  // The producer's op on other operands, or `otherwise` where it does not take them.
  ValueId emit_like(NodeId producer, llvm::ArrayRef<ValueId> operands, ValueId otherwise) {
    const Node& node = graph().node(producer);
    llvm::SmallVector<const Type*, 4> types;
    for (ValueId operand : operands) types.push_back(operand == ValueId::None ? nullptr : &graph().type(operand));
    Result<Types> results = infer(OpCall(*node.op, node.attrs, types));
    if (!results) {
      llvm::consumeError(results.takeError());
      return otherwise;
    }
    const Attrs attrs = node.attrs;
    return b.emit(node.op->name, operands, attrs);
  }
};

}  // namespace

ValueId boolean_behind(const Graph& graph, ValueId mask) {
  const Node* where = producer_of(graph, mask, "where");
  if (!where || !is_splat(graph, where->operands[1], 0, 0)) return mask;
  std::optional<double> off = splat_value(graph, where->operands[2]);
  return off && std::isinf(*off) && *off < 0 ? where->operands[0] : mask;
}

ConstantMask classify_mask(const Graph& graph, ValueId mask, int64_t rows, int64_t columns) {
  const Tensor* tensor = constant_behind(graph, mask);
  if (!tensor) return ConstantMask::Other;
  bool boolean = tensor->type().dtype == DType::Bool;
  auto open = [&](int64_t i) { return boolean ? tensor->get(i) != 0 : tensor->get(i) == 0; };
  auto closed = [&](int64_t i) { return boolean ? tensor->get(i) == 0 : tensor->get(i) <= closed_from; };
  int64_t count = tensor->type().elements();
  bool all_open = true;
  for (int64_t i = 0; i < count && all_open; ++i) all_open = open(i);
  if (all_open) return ConstantMask::AllOpen;
  if (count != rows * columns || rows != columns) return ConstantMask::Other;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      if (!(j <= i ? open(i * columns + j) : closed(i * columns + j))) return ConstantMask::Other;
  return ConstantMask::Causal;
}

OpenMask take_closed_forms(Graph& graph, NodeId reader, ValueId mask, int64_t rows, int64_t columns) {
  MaskTaker taker{builder_at(graph, reader), rows, columns};
  OpenMask taken = taker.take(mask);
  if (taken.rest == ValueId::None) return taken;
  taken.rest = taker.narrowed(taken.rest);
  if (graph.type(taken.rest).rank() < 2)
    taken.rest = taker.b.reshape(taken.rest, {1, graph.type(taken.rest).elements()});
  return taken;
}

}  // namespace plimsoll
