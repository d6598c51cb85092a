#include "passes/clean/attention_mask.h"

#include "ir/depends_on_parameter.h"
#include "passes/clean/attention_band.h"
#include "passes/clean/attention_slopes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

constexpr int max_depth = 16;  // of the arithmetic behind a mask

// The elements of a constant mask, boolean or added to scores. Runs of one number, which masks are made of, are
// compared as bytes: a model may have a mask of millions of elements in each of its layers.
class MaskElements {
 public:
  MaskElements(const TensorView& view, bool is_inverted)
      : view_(view),
        boolean_(view.type.dtype == DType::Bool),
        is_inverted_(is_inverted),
        bytes_(dtype_bytes(view.type.dtype)) {}

  bool is_open(int64_t i) const { return boolean_ ? (view_.get(i) != 0) != is_inverted_ : view_.get(i) == 0; }
  bool is_closed(int64_t i) const { return boolean_ ? !is_open(i) : view_.get(i) <= closed_from; }
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
  bool boolean_, is_inverted_;
  int64_t bytes_;
};

// What a band says that opens each row's own column; none where no closed form says it.
std::optional<ClosedForm> closed_form_of(const Band& band, int64_t rows) {
  const int64_t first = std::max(band.first.value_or(-rows), 1 - rows),
                last = std::min(band.last.value_or(rows), rows - 1);
  const int64_t behind = -first, most = rows - 1;
  if (behind < 0 || last < 0) return std::nullopt;
  if (last == 0) return ClosedForm{true, behind < most ? behind + 1 : 0};
  if (last != behind) return std::nullopt;
  return ClosedForm{false, last < most ? last + 1 : 0};
}

// where(m, 0, a large negative number)
bool closes_where_false(const Graph& graph, const Node& node) {
  if (node.op->name != "where" || !is_splat(graph, node.operands[1], 0, 0)) return false;
  const std::optional<double> closed = splat_value(graph, node.operands[2]);
  return closed && *closed <= closed_from;
}

struct MaskTaker {
  Builder b;
  int64_t heads = 0, rows = 0, columns = 0;
  bool is_causal = false, has_sinks = false, takes_slopes = false;  // of the attention, once its whole mask is known
  std::optional<Segments> segments = {};                            // that may be taken

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
    if (operands == graph().node(producer).operands) return value;
    return emit_like(producer, operands, value);
  }

  // The mask with the dimension of heads in what it is made of, where [samples, rows, columns] gets it at the end:
  // masks say what they mean in one form then.
  ValueId with_heads(ValueId mask, int depth = 0) {
    const NodeId producer = graph().value(mask).producer;
    if (producer == NodeId::None || depth > max_depth) return mask;
    const Node& node = graph().node(producer);
    if (node.op->name == "reshape") {
      const Shape from = graph().type(node.operands[0]).shape, to = graph().type(mask).shape;
      const NodeId below = graph().value(node.operands[0]).producer;
      const bool inserts = from.size() == 3 && to == Shape{from[0], 1, from[1], from[2]};
      return inserts && below != NodeId::None && is_plain(below) ? insert_heads(node.operands[0]) : mask;
    }
    const bool joins = node.op->name == "and" || node.op->name == "add" || node.op->name == "where";
    if (!joins) return mask;
    llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
    for (ValueId& operand : operands) operand = with_heads(operand, depth + 1);
    const bool is_same = operands == graph().node(producer).operands;
    return is_same ? mask : emit_like(producer, operands, mask);
  }

  // None stands for a mask that is open everywhere.
  OpenMask take(ValueId mask, int depth = 0) {
    mask = boolean_behind(graph(), mask);
    if (std::optional<ClosedForm> closed = closed_form_of(graph(), mask, rows, columns))
      return {ValueId::None, *closed};
    if (std::optional<ClosedForm> closed = take_band(mask)) return {ValueId::None, *closed};
    if (std::optional<OpenMask> open = take_slopes(mask)) return *open;
    if (std::optional<OpenMask> open = take_segments(mask)) return *open;
    const NodeId producer = graph().value(mask).producer;
    if (producer == NodeId::None || depth > max_depth) return {mask};
    const Node& node = graph().node(producer);
    const bool is_sum = node.op->name == "add" && is_float(graph().type(mask).dtype);
    if (node.op->name == "and" || is_sum) return take_pair(producer, mask, depth);
    if (std::optional<OpenMask> open = take_filled(producer, depth)) return *open;
    if (!closes_where_false(graph(), node)) return {mask};
    const ValueId zero = node.operands[1], low = node.operands[2];
    OpenMask inner = take(node.operands[0], depth + 1);
    if (inner.rest == graph().node(producer).operands[0])
      inner.rest = mask;
    else if (inner.rest != ValueId::None)
      inner.rest = emit_like(producer, {inner.rest, zero, low}, mask);
    return inner;
  }

 private:
  // An elementwise op with one result.
  bool is_plain(NodeId node) { return graph().node(node).op->elementwise && graph().node(node).results.size() == 1; }

  ValueId insert_heads(ValueId value, int depth = 0) {
    const Shape shape = graph().type(value).shape;
    if (shape.size() != 3) return value;
    const NodeId producer = graph().value(value).producer;
    const ValueId reshaped = b.reshape(value, {shape[0], 1, shape[1], shape[2]});
    if (producer == NodeId::None || depth > max_depth || !is_plain(producer)) return reshaped;
    llvm::SmallVector<ValueId, 4> operands = graph().node(producer).operands;
    for (ValueId& operand : operands)
      if (operand != ValueId::None) operand = insert_heads(operand, depth + 1);
    return emit_like(producer, operands, reshaped);
  }

  OpenMask take_pair(NodeId producer, ValueId mask, int depth) {
    const ValueId first = graph().node(producer).operands[0], second = graph().node(producer).operands[1];
    const OpenMask left = take(first, depth + 1), right = take(second, depth + 1);
    OpenMask both = left;
    both.closed.narrow(right.closed);
    both.has_segments |= right.has_segments;
    if (both.slopes.empty()) both.slopes = right.slopes;
    for (size_t h = 0; h < right.slopes.size() && !left.slopes.empty(); ++h) both.slopes[h] += right.slopes[h];
    if (left.rest == ValueId::None || right.rest == ValueId::None) {
      both.rest = left.rest == ValueId::None ? right.rest : left.rest;
    } else if (left.rest == first && right.rest == second) {
      both.rest = mask;
    } else {
      // What a sum adds may have become boolean.
      if (graph().type(left.rest).dtype != graph().type(right.rest).dtype) return {mask};
      const bool chooses = graph().type(left.rest).dtype == DType::Bool;
      both.rest = b.emit(chooses ? "and" : "add", {left.rest, right.rest});
    }
    return both;
  }

  // where(closed, a large negative number, x), and where(open, x, such a number): a closed form, and what x says.
  // Falcon fills numbers of heads and columns so. A learned x stays as it is, since no kernel makes the gradient of one
  // that has not a number for each row and column.
  std::optional<OpenMask> take_filled(NodeId producer, int depth) {
    if (graph().node(producer).op->name != "where") return std::nullopt;
    const llvm::SmallVector<ValueId, 4> operands = graph().node(producer).operands;
    for (const size_t kept : {size_t{1}, size_t{2}}) {
      const ValueId x = operands[kept];
      const std::optional<double> low = splat_value(graph(), operands[3 - kept]);
      if (!low || *low > closed_from || depends_on_parameter(graph(), x)) continue;
      const bool is_inverted = kept == 2;
      const std::optional<ClosedForm> closed = closed_form_of(graph(), operands[0], rows, columns, is_inverted);
      if (!closed) continue;
      is_causal |= closed->causal;
      OpenMask open = take(x, depth + 1);
      open.closed.narrow(*closed);
      return open;
    }
    return std::nullopt;
  }

  // Where columns ahead of the row are closed anyway, a band need not say so.
  std::optional<ClosedForm> take_band(ValueId mask) {
    std::optional<Band> band = is_causal && rows == columns ? band_of(graph(), mask, rows, columns) : std::nullopt;
    if (!band) return std::nullopt;
    band->narrow({std::nullopt, 0});
    return closed_form_of(*band, rows);
  }

  std::optional<OpenMask> take_slopes(ValueId mask) {
    if (!takes_slopes) return std::nullopt;
    const std::optional<Slopes> slopes = slopes_of(graph(), mask, heads, rows, columns);
    if (!slopes || (slopes->is_linear && !is_causal) || (slopes->shifts_rows && has_sinks)) return std::nullopt;
    return OpenMask{ValueId::None, {slopes->closes_columns_ahead}, slopes->of_heads};
  }

  std::optional<OpenMask> take_segments(ValueId mask) {
    if (!segments) return std::nullopt;
    const std::optional<Segments> here = segments_of(graph(), mask, rows, columns);
    if (here && here->numbers == segments->numbers) return OpenMask{.rest = ValueId::None, .has_segments = true};
    if (!orders_segments(graph(), mask, *segments, rows, columns)) return std::nullopt;
    return OpenMask{ValueId::None, {/*causal=*/true}};
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

std::optional<ClosedForm> closed_form_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns,
                                         bool is_inverted) {
  const Tensor* tensor = constant_behind(graph, mask);
  if (!tensor) {
    std::optional<Band> band = rows == columns ? band_of(graph, mask, rows, columns) : std::nullopt;
    if (band && is_inverted) band = rest_of(*band);
    return band ? closed_form_of(*band, rows) : std::nullopt;
  }
  const MaskElements elements(tensor->view(), is_inverted);
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

// Calls visit with the masks that `mask` is the conjunction or the sum of, until it returns true.
static bool find_part(const Graph& graph, ValueId mask, llvm::function_ref<bool(ValueId)> visit, int depth = 0) {
  mask = boolean_behind(graph, mask);
  if (visit(mask)) return true;
  const NodeId producer = graph.value(mask).producer;
  if (producer == NodeId::None || depth > max_depth) return false;
  const Node& node = graph.node(producer);
  if (closes_where_false(graph, node)) return find_part(graph, node.operands[0], visit, depth + 1);
  if (node.op->name != "and" && node.op->name != "add") return false;
  return find_part(graph, node.operands[0], visit, depth + 1) || find_part(graph, node.operands[1], visit, depth + 1);
}

std::optional<Segments> segments_within(const Graph& graph, ValueId mask, int64_t rows, int64_t columns) {
  std::optional<Segments> found;
  find_part(graph, mask, [&](ValueId part) { return (found = segments_of(graph, part, rows, columns)).has_value(); });
  return found;
}

ValueId mask_with_heads(Graph& graph, NodeId attention, ValueId mask) {
  return MaskTaker{builder_at(graph, attention)}.with_heads(mask);
}

OpenMask take_closed_forms(Graph& graph, NodeId attention, ValueId mask, int64_t rows, int64_t columns,
                           const std::optional<Segments>& segments) {
  const Node& node = graph.node(attention);
  const bool is_causal =
      node.attrs.get_int("causal") != 0 || find_part(graph, mask, [&](ValueId part) {
        const std::optional<ClosedForm> closed = closed_form_of(graph, part, rows, columns);
        return (closed && closed->causal) || (segments && orders_segments(graph, part, *segments, rows, columns));
      });
  auto has = [&](llvm::StringRef operand) { return operand_of(node, operand) != ValueId::None; };
  MaskTaker taker{builder_at(graph, attention),
                  node.attrs.get_int("heads"),
                  rows,
                  columns,
                  is_causal,
                  has("sinks"),
                  !has("slopes"),
                  segments};
  OpenMask taken = taker.take(mask);
  if (taken.rest == ValueId::None) return taken;
  taken.rest = taker.narrowed(taken.rest);
  if (graph.type(taken.rest).rank() < 2)
    taken.rest = taker.b.reshape(taken.rest, {1, graph.type(taken.rest).elements()});
  return taken;
}

}  // namespace plimsoll
