#include "passes/clean/attention_mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

constexpr double closed_from = -1e4;  // added to a score, numbers from here down leave nothing of a probability
constexpr int max_depth = 16;         // of the arithmetic behind a mask

// The elements of a constant mask, boolean or added to scores. Runs of one number, which masks are made of, are
// compared as bytes: a model may have a mask of millions of elements in each of its layers.
class MaskElements {
 public:
  explicit MaskElements(const TensorView& view)
      : view_(view), boolean_(view.type.dtype == DType::Bool), bytes_(dtype_bytes(view.type.dtype)) {}

  bool is_open(int64_t i) const { return boolean_ ? view_.get(i) != 0 : view_.get(i) == 0; }
  bool is_closed(int64_t i) const { return boolean_ ? view_.get(i) == 0 : view_.get(i) <= closed_from; }
  bool are_open(int64_t first, int64_t count) const {
    return all(first, count, [&](int64_t i) { return is_open(i); });
  }
  bool are_closed(int64_t first, int64_t count) const {
    return all(first, count, [&](int64_t i) { return is_closed(i); });
  }

 private:
  bool all(int64_t first, int64_t count, llvm::function_ref<bool(int64_t)> holds) const {
    if (count == 0) return true;
    if (!holds(first)) return false;
    // Each element is the one before it, and so are the bytes.
    const auto* at = view_.as<const char>() + first * bytes_;
    if (std::memcmp(at, at + bytes_, static_cast<size_t>((count - 1) * bytes_)) == 0) return true;
    for (int64_t i = first + 1; i < first + count; ++i)
      if (!holds(i)) return false;
    return true;
  }

  TensorView view_;
  bool boolean_;
  int64_t bytes_;
};

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
    if (std::optional<ClosedForm> closed = closed_form_of(graph(), mask, rows, columns))
      return {ValueId::None, *closed};
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
      return {inner.rest == ValueId::None ? inner.rest : mask, inner.closed};
    return {emit_like(producer, {inner.rest, zero, low}, mask), inner.closed};
  }

 private:
  OpenMask take_pair(NodeId producer, ValueId mask, int depth) {
    const ValueId first = graph().node(producer).operands[0], second = graph().node(producer).operands[1];
    const OpenMask left = take(first, depth + 1), right = take(second, depth + 1);
    ClosedForm closed = left.closed;
    closed.narrow(right.closed);
    if (left.rest == ValueId::None || right.rest == ValueId::None)
      return {left.rest == ValueId::None ? right.rest : left.rest, closed};
    if (left.rest == first && right.rest == second) return {mask, closed};
    // What a sum adds may have become boolean.
    if (graph().type(left.rest).dtype != graph().type(right.rest).dtype) return {mask};
    const bool chooses = graph().type(left.rest).dtype == DType::Bool;
    return {b.emit(chooses ? "and" : "add", {left.rest, right.rest}), closed};
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

void ClosedForm::narrow(const ClosedForm& other) {
  causal |= other.causal;
  if (other.window > 0) window = window > 0 ? std::min(window, other.window) : other.window;
}

void ClosedForm::set(Attrs& attention) const {
  if (causal) attention.set("causal", int64_t{1});
  if (window > 0) attention.set("window", window);
}

ClosedForm ClosedForm::of(const Attrs& attention) {
  return {attention.get_int("causal") != 0, attention.get_int("window")};
}

std::optional<ClosedForm> closed_form_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns) {
  const Tensor* tensor = constant_behind(graph, mask);
  if (!tensor) return std::nullopt;
  const MaskElements elements(tensor->view());
  const int64_t count = tensor->type().elements();
  if (elements.are_open(0, count)) return ClosedForm{};
  if (count != rows * columns || rows != columns || rows < 2) return std::nullopt;
  // The last row tells the window, the first one whether columns behind the row are closed.
  int64_t window = 0;
  while (window < columns && elements.is_open(count - 1 - window)) ++window;
  const ClosedForm form{elements.is_closed(1), window < columns ? window : 0};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = form.window > 0 ? std::max<int64_t>(i - form.window + 1, 0) : 0,
                  end = form.causal       ? i + 1
                        : form.window > 0 ? std::min(i + form.window, columns)
                                          : columns;
    const int64_t row = i * columns;
    if (!elements.are_closed(row, first) || !elements.are_open(row + first, end - first) ||
        !elements.are_closed(row + end, columns - end))
      return std::nullopt;
  }
  return form;
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
