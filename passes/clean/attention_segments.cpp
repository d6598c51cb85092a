#include "passes/clean/attention_segments.h"

#include <vector>

namespace plimsoll {
namespace {

enum class Along : uint8_t { Rows, Columns };

ValueId below_reshapes(const Graph& graph, ValueId value) {
  while (const Node* reshape = producer_of(graph, value, "reshape")) value = reshape->operands[0];
  return value;
}

// What numbers of rows [1 or samples, 1, rows, 1], or of columns [1 or samples, 1, 1, columns], are made of.
std::optional<Segments> numbers_along(const Graph& graph, ValueId value, Along along, int64_t count) {
  while (const Node* expand = producer_of(graph, value, "expand")) value = expand->operands[0];
  const Type& type = graph.type(value);
  llvm::ArrayRef<int64_t> dims(type.shape);
  if (!is_integer(type.dtype) || dims.empty() || dims.size() > 4) return std::nullopt;
  const int64_t own = along == Along::Columns ? dims.back() : dims.size() > 1 ? dims[dims.size() - 2] : 1;
  const int64_t other = along == Along::Rows ? dims.back() : dims.size() > 1 ? dims[dims.size() - 2] : 1;
  const int64_t samples = dims.size() == 4 ? dims[0] : 1;
  if (own != count || other != 1 || type.elements() != samples * count) return std::nullopt;
  return Segments{below_reshapes(graph, value), samples};
}

// The value of a slice [.., count] of x [.., count + 1] that leaves out the first or the last element.
ValueId without_one(const Graph& graph, ValueId value, int64_t start) {
  const Node* slice = producer_of(graph, below_reshapes(graph, value), "slice");
  if (!slice) return ValueId::None;
  const auto starts = slice->attrs.get_ints("starts"), steps = slice->attrs.get_ints("steps");
  const Shape from = graph.type(slice->operands[0]).shape, to = graph.type(slice->results[0]).shape;
  if (from.back() != to.back() + 1 || starts.back() != start || steps.back() != 1) return ValueId::None;
  return slice->operands[0];
}

// Is `value` the difference of each element of `positions` and the one before it? What stands before the first does not
// matter.
bool is_difference(const Graph& graph, ValueId value, ValueId positions) {
  const Node* sub = producer_of(graph, below_reshapes(graph, value), "sub");
  if (!sub) return false;
  const ValueId before = without_one(graph, sub->operands[1], 0), after = without_one(graph, sub->operands[0], 1);
  const Node* concat = producer_of(graph, before, "concat");
  if (!concat || concat->operands.size() != 2) return false;
  const ValueId whole = below_reshapes(graph, concat->operands[1]), own = below_reshapes(graph, sub->operands[0]);
  return whole == positions && (after == before || own == positions);
}

// Is there a new number wherever a position is not the one before it and one more?
bool starts_at_jumps(const Graph& graph, ValueId numbers, ValueId positions) {
  const Node* sum = producer_of(graph, numbers, "cumsum");
  const int64_t last = sum ? graph.type(numbers).rank() - 1 : 0;
  if (!sum || sum->attrs.get_int("axis") != last || sum->attrs.get_int("exclusive") || sum->attrs.get_int("reverse"))
    return false;
  const ValueId jumps = below_reshapes(graph, value_below(graph, below_reshapes(graph, sum->operands[0]), "cast"));
  const Node* follows = producer_of(graph, value_below(graph, jumps, "not"), "equal");
  if (!follows) return false;
  const std::optional<WithNumber> step = with_number(graph, *follows);
  return step && step->number == 1 && is_difference(graph, step->value, positions);
}

}  // namespace

std::optional<Segments> segments_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns) {
  while (const Node* expand = producer_of(graph, mask, "expand")) mask = expand->operands[0];
  const Node* equal = producer_of(graph, mask, "equal");
  if (!equal || rows != columns) return std::nullopt;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const auto of_rows = numbers_along(graph, equal->operands[side], Along::Rows, rows);
    const auto of_columns = numbers_along(graph, equal->operands[1 - side], Along::Columns, columns);
    if (of_rows && of_columns && of_rows->numbers == of_columns->numbers && of_rows->samples == of_columns->samples)
      return of_rows;
  }
  return std::nullopt;
}

std::optional<Tensor> segments_of_windows(const Graph& graph, ValueId mask, int64_t windows, int64_t rows) {
  const Tensor* tensor = constant_behind(graph, mask);
  const Shape shape = graph.type(mask).shape;
  const Shape wanted{windows, 1, rows, rows};
  if (!tensor || !is_float(tensor->type().dtype) || shape.size() < wanted.size()) return std::nullopt;
  const llvm::ArrayRef<int64_t> dims(shape);
  const bool leads_with_ones = llvm::all_of(dims.drop_back(wanted.size()), [](int64_t dim) { return dim == 1; });
  if (!leads_with_ones || dims.take_back(wanted.size()) != llvm::ArrayRef<int64_t>(wanted) ||
      tensor->type().elements() != windows * rows * rows)
    return std::nullopt;
  std::vector<int64_t> numbers;  // a segment has the number of its first row
  for (int64_t window = 0; window < windows; ++window) {
    const auto added = [&](int64_t row, int64_t column) { return tensor->get((window * rows + row) * rows + column); };
    for (int64_t row = 0; row < rows; ++row) {
      int64_t first = 0;
      while (first < row && added(row, first) != 0) ++first;
      numbers.push_back(first);
    }
    const auto of_window = llvm::ArrayRef<int64_t>(numbers).take_back(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < rows; ++column)
        if (of_window[row] == of_window[column] ? added(row, column) != 0 : !(added(row, column) <= apart_from))
          return std::nullopt;
  }
  return Tensor(Type(DType::I64, {windows, rows}), numbers.data());
}

bool orders_segments(const Graph& graph, ValueId mask, const Segments& segments, int64_t rows, int64_t columns) {
  while (const Node* expand = producer_of(graph, mask, "expand")) mask = expand->operands[0];
  const Node* less = producer_of(graph, mask, "less_equal");
  const Node* greater = producer_of(graph, mask, "greater_equal");
  if (!less && !greater) return false;
  const llvm::ArrayRef<ValueId> sides(less ? less->operands : greater->operands);
  const auto of_columns = numbers_along(graph, sides[less ? 0 : 1], Along::Columns, columns);
  const auto of_rows = numbers_along(graph, sides[less ? 1 : 0], Along::Rows, rows);
  return of_columns && of_rows && of_columns->numbers == of_rows->numbers &&
         starts_at_jumps(graph, segments.numbers, of_rows->numbers);
}

}  // namespace plimsoll
