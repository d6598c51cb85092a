#include "passes/clean/attention_band.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

constexpr int max_depth = 8;              // of the arithmetic behind a mask
constexpr double max_position = 1 << 22;  // f32 holds sums of a few positions exactly

// row * r + column * c + offset, whole numbers, at row r and column c.
struct Position {
  int64_t row = 0, column = 0, offset = 0;

  Position plus(const Position& other, int64_t times) const {
    return {row + times * other.row, column + times * other.column, offset + times * other.offset};
  }
};

class BandReader {
 public:
  BandReader(const Graph& graph, int64_t rows, int64_t columns) : graph_(graph), rows_(rows), columns_(columns) {}

  std::optional<Band> read(ValueId mask, int depth = 0) const {
    const NodeId producer = graph_.value(mask).producer;
    if (producer == NodeId::None || depth > max_depth) return std::nullopt;
    const Node& node = graph_.node(producer);
    const llvm::StringRef op = node.op->name;
    if (op == "expand") return read(node.operands[0], depth + 1);
    if (op == "not") {
      const std::optional<Band> open = read(node.operands[0], depth + 1);
      return open ? rest_of(*open) : std::nullopt;
    }
    if (op == "and") {
      std::optional<Band> band = read(node.operands[0], depth + 1);
      const std::optional<Band> other = band ? read(node.operands[1], depth + 1) : std::nullopt;
      if (!other) return std::nullopt;
      band->narrow(*other);
      return band;
    }
    // a <= b and a < b, for whole numbers a <= b - 1
    const bool is_less = op == "less" || op == "less_equal", is_greater = op == "greater" || op == "greater_equal";
    if (!is_less && !is_greater) return std::nullopt;
    const int64_t strict = op == "less" || op == "greater" ? 1 : 0;
    return is_less ? at_most(node.operands[0], node.operands[1], strict)
                   : at_most(node.operands[1], node.operands[0], strict);
  }

 private:
  // Where low <= high - strict.
  std::optional<Band> at_most(ValueId low, ValueId high, int64_t strict) const {
    const std::optional<Position> most = position(high);
    if (!most) return std::nullopt;
    if (const ValueId inside = value_below(graph_, low, "abs"); inside != ValueId::None) {
      const std::optional<Position> distance = position(inside);
      if (!distance || most->row != 0 || most->column != 0) return std::nullopt;
      std::optional<Band> band = where_at_most(*distance, most->offset - strict);
      const std::optional<Band> mirrored = where_at_most(Position{}.plus(*distance, -1), most->offset - strict);
      if (!band || !mirrored) return std::nullopt;
      band->narrow(*mirrored);
      return band;
    }
    const std::optional<Position> least = position(low);
    return least ? where_at_most(least->plus(*most, -1), -strict) : std::nullopt;
  }

  // Where a difference of column and row, or of row and column, is at most `limit`.
  static std::optional<Band> where_at_most(const Position& difference, int64_t limit) {
    if (difference.row + difference.column != 0 || std::abs(difference.column) != 1) return std::nullopt;
    const int64_t bound = limit - difference.offset;
    return difference.column > 0 ? Band{std::nullopt, bound} : Band{-bound, std::nullopt};
  }

  std::optional<Position> position(ValueId value, int depth = 0) const {
    if (constant_behind(graph_, value)) return position_of_constant(value);
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None || depth > max_depth) return std::nullopt;
    const Node& node = graph_.node(producer);
    const llvm::StringRef op = node.op->name;
    if (op == "expand" || (op == "cast" && holds_positions(node.results[0])))
      return position(node.operands[0], depth + 1);
    if (op == "neg") {
      const std::optional<Position> below = position(node.operands[0], depth + 1);
      return below ? std::optional(Position{}.plus(*below, -1)) : std::nullopt;
    }
    if (op != "add" && op != "sub") return std::nullopt;
    const std::optional<Position> left = position(node.operands[0], depth + 1),
                                  right = position(node.operands[1], depth + 1);
    if (!left || !right) return std::nullopt;
    return left->plus(*right, op == "add" ? 1 : -1);
  }

  // Floats and integers of 16 bits or fewer do not.
  bool holds_positions(ValueId value) const { return dtype_bytes(graph_.type(value).dtype) >= 4; }

  // A number, or positions in steps of one along rows [.., rows, 1] or columns [.., columns].
  std::optional<Position> position_of_constant(ValueId value) const {
    while (const Node* expand = producer_of(graph_, value, "expand")) value = expand->operands[0];
    const Tensor* tensor = constant_behind(graph_, value);
    const Shape& shape = graph_.type(value).shape;
    const int64_t count = tensor->type().elements();
    if (count != graph_.type(value).elements() || count < 1 || !are_whole(*tensor)) return std::nullopt;
    const auto first = static_cast<int64_t>(tensor->get(0));
    if (count == 1) return Position{0, 0, first};
    const bool along_columns = shape.back() == columns_ && count == columns_;
    const bool along_rows = shape.size() > 1 && shape.back() == 1 && shape[shape.size() - 2] == rows_ && count == rows_;
    if (!along_columns && !along_rows) return std::nullopt;
    const auto step = static_cast<int64_t>(tensor->get(1)) - first;
    for (int64_t i = 0; i < count; ++i)
      if (static_cast<int64_t>(tensor->get(i)) != first + i * step) return std::nullopt;
    return along_columns ? Position{0, step, first} : Position{step, 0, first};
  }

  static bool are_whole(const Tensor& tensor) {
    for (int64_t i = 0; i < tensor.type().elements(); ++i) {
      const double number = tensor.get(i);
      if (!(std::abs(number) <= max_position) || number != std::trunc(number)) return false;
    }
    return true;
  }

  const Graph& graph_;
  int64_t rows_, columns_;
};

}  // namespace

void Band::narrow(const Band& other) {
  if (other.first) first = first ? std::max(*first, *other.first) : other.first;
  if (other.last) last = last ? std::min(*last, *other.last) : other.last;
}

std::optional<Band> rest_of(const Band& band) {
  if (band.first.has_value() == band.last.has_value()) return std::nullopt;
  return band.first ? Band{std::nullopt, *band.first - 1} : Band{*band.last + 1, std::nullopt};
}

std::optional<Band> band_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns) {
  return BandReader(graph, rows, columns).read(mask);
}

}  // namespace plimsoll
