#include "passes/clean/simplify_rules.h"

// These rules cut and join instead of looking up. What a model writes with slices, `x[:, i] = y` or `x[ids]` with known
// ids that count, is a scatter or a gather in exports; concatenations and slices of it are views, or copies that later
// passes place and fuse. A slice of a concatenation reads the operands that it takes, so that a tensor which is written
// slice by slice becomes one concatenation.

namespace plimsoll {
namespace {

// The numbers {first + i * step}; the step is at least 1.
struct Counting {
  int64_t first, step;
};

std::optional<Counting> counting(llvm::ArrayRef<int64_t> numbers) {
  if (numbers.empty() || numbers[0] < 0) return std::nullopt;
  const Counting found{numbers[0], numbers.size() > 1 ? numbers[1] - numbers[0] : 1};
  if (found.step < 1) return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] != found.first + static_cast<int64_t>(i) * found.step) return std::nullopt;
  return found;
}

// `size` elements of x along an axis.
ValueId piece(Builder& b, ValueId x, size_t axis, int64_t start, int64_t size, int64_t step = 1) {
  Ints starts(b.type(x).shape.size(), 0), steps(starts.size(), 1),
      sizes(b.type(x).shape.begin(), b.type(x).shape.end());
  if (start == 0 && step == 1 && size == sizes[axis]) return x;
  starts[axis] = start;
  steps[axis] = step;
  sizes[axis] = size;
  return b.emit("slice", {x}, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}});
}

ValueId joined(Builder& b, llvm::ArrayRef<ValueId> pieces, size_t axis) {
  return pieces.size() == 1 ? pieces[0] : b.emit("concat", pieces, {{"axis", static_cast<int64_t>(axis)}});
}

ValueId gather(Builder& b, const Node& node) {
  const Node* table = producer_of(b.graph(), operand_of(node, "indices"), "constant");
  if (!table) return ValueId::None;
  const auto numbers = table->attrs.get_tensor("value")->ints();
  const auto axis = static_cast<size_t>(node.attrs.get_int("axis"));
  const ValueId x = operand_of(node, "x");
  const auto count = static_cast<int64_t>(numbers.size());
  const std::optional<Counting> rows = counting(numbers);
  if (!rows || rows->first + (count - 1) * rows->step >= b.type(x).shape[axis]) return ValueId::None;
  const Shape result = b.type(node.results[0]).shape;
  return b.reshape(piece(b, x, axis, rows->first, count, rows->step), result);
}

// x with `updates` in place of as many elements along the axis.
ValueId written(Builder& b, ValueId x, ValueId updates, size_t axis, int64_t first) {
  const int64_t whole = b.type(x).shape[axis], end = first + b.type(updates).shape[axis];
  if (end > whole || b.type(updates).dtype != b.type(x).dtype) return ValueId::None;
  llvm::SmallVector<ValueId, 3> pieces;
  if (first > 0) pieces.push_back(piece(b, x, axis, 0, first));
  pieces.push_back(updates);
  if (end < whole) pieces.push_back(piece(b, x, axis, end, whole - end));
  return joined(b, pieces, axis);
}

ValueId scatter_nd(Builder& b, const Node& node) {
  const ValueId x = operand_of(node, "x"), updates = operand_of(node, "updates");
  if (b.type(updates).elements() == 0) return x;
  const Node* table = producer_of(b.graph(), operand_of(node, "indices"), "constant");
  if (!table || node.attrs.get_string("reduction", "none") != "none") return ValueId::None;
  const TensorRef indices = table->attrs.get_tensor("value");
  const std::optional<Counting> rows = counting(indices->ints());
  if (indices->type().shape.back() != 1 || !rows || rows->step != 1) return ValueId::None;
  Shape shape = b.type(x).shape;
  shape[0] = indices->type().elements();
  return written(b, x, b.reshape(updates, shape), 0, rows->first);
}

// The first of the numbers that count along the axis and are the same along all others; none where they are not so.
std::optional<int64_t> first_along(const Graph& graph, ValueId indices, size_t axis) {
  const Shape whole = graph.type(indices).shape;
  if (const ValueId below = value_below(graph, indices, "expand"); below != ValueId::None) indices = below;
  const Node* table = producer_of(graph, indices, "constant");
  if (!table) return std::nullopt;
  const TensorRef tensor = table->attrs.get_tensor("value");
  Shape shape(whole.size() - tensor->type().shape.size(), 1);
  shape.append(tensor->type().shape.begin(), tensor->type().shape.end());
  const auto numbers = tensor->ints();
  if (numbers.empty() || numbers[0] < 0 || shape[axis] != whole[axis]) return std::nullopt;
  const int64_t stride = row_major_strides(shape)[axis];
  for (int64_t i = 0; i < static_cast<int64_t>(numbers.size()); ++i)
    if (numbers[i] != numbers[0] + i / stride % shape[axis]) return std::nullopt;
  return numbers[0];
}

ValueId scatter_elements(Builder& b, const Node& node) {
  const ValueId x = operand_of(node, "x"), updates = operand_of(node, "updates");
  if (b.type(updates).elements() == 0) return x;
  const auto axis = static_cast<size_t>(node.attrs.get_int("axis"));
  Shape covered = b.type(updates).shape;
  const Shape whole = b.type(x).shape;
  if (node.attrs.get_string("reduction", "none") != "none" || covered.size() != whole.size()) return ValueId::None;
  covered[axis] = whole[axis];
  const std::optional<int64_t> first = first_along(b.graph(), operand_of(node, "indices"), axis);
  return covered == whole && first ? written(b, x, updates, axis, *first) : ValueId::None;
}

// Does nothing but slices read the value?
bool is_only_cut(const Graph& graph, ValueId x) {
  return !leaves_graph(graph, x) &&
         llvm::all_of(graph.value(x).users, [&](NodeId user) { return graph.node(user).op->name == "slice"; });
}

// Does a slice take whole slices of x along the axis, without steps?
bool cuts_along(const Graph& graph, const Node& slice, size_t axis) {
  const Shape whole = graph.type(slice.operands[0]).shape, part = graph.type(slice.results[0]).shape;
  for (size_t d = 0; d < whole.size(); ++d)
    if (slice.attrs.get_ints("steps")[d] != 1 || (d != axis && part[d] != whole[d])) return false;
  return true;
}

// What a slice takes of the operands of a concatenation, from several of them if it may.
ValueId from_operands(Builder& b, const Node& slice, llvm::ArrayRef<ValueId> operands, size_t axis,
                      bool takes_several) {
  Attrs attrs = slice.attrs;
  Ints starts(attrs.get_ints("starts").begin(), attrs.get_ints("starts").end());
  const int64_t from = starts[axis], steps = attrs.get_ints("sizes")[axis] - 1;
  const int64_t to = from + steps * attrs.get_ints("steps")[axis] + 1;
  llvm::SmallVector<ValueId, 4> pieces;
  int64_t begin = 0;
  for (ValueId operand : operands) {
    const int64_t end = begin + b.type(operand).shape[axis];
    if (begin <= from && to <= end) {
      starts[axis] -= begin;
      attrs.set("starts", starts);
      return b.emit("slice", {operand}, attrs);
    }
    const int64_t first = std::max(from, begin), last = std::min(to, end);
    if (takes_several && first < last) pieces.push_back(piece(b, operand, axis, first - begin, last - first));
    begin = end;
  }
  return takes_several ? joined(b, pieces, axis) : ValueId::None;
}

// The operand of the concatenation that a slice is; None where it is none.
ValueId operand_taken(const Graph& graph, const Node& slice, const Node& concat, size_t axis) {
  int64_t begin = 0;
  for (ValueId operand : concat.operands) {
    const int64_t size = graph.type(operand).shape[axis];
    if (slice.attrs.get_ints("starts")[axis] == begin && slice.attrs.get_ints("sizes")[axis] == size)
      return cuts_along(graph, slice, axis) ? operand : ValueId::None;
    begin += size;
  }
  return ValueId::None;
}

// Slices of a concatenation that are its operands are these. Where nothing but slices reads the concatenation, they
// read the operands that they take: one, or several where all slices cut along the axis. Where something else reads it,
// slices of parts of operands stay with it, as parts of one split.
ValueId slice(Builder& b, const Node& node) {
  const Graph& graph = b.graph();
  const ValueId x = node.operands[0];
  const Node* concat = producer_of(graph, x, "concat");
  if (!concat || graph.type(node.results[0]).elements() == 0) return ValueId::None;
  const auto axis = static_cast<size_t>(concat->attrs.get_int("axis"));
  const auto all_slices = [&](llvm::function_ref<bool(const Node&)> are) {
    return llvm::all_of(graph.value(x).users,
                        [&](NodeId user) { return graph.node(user).op->name != "slice" || are(graph.node(user)); });
  };
  const ValueId taken = operand_taken(graph, node, *concat, axis);
  const auto is_operand = [&](const Node& other) {
    return operand_taken(graph, other, *concat, axis) != ValueId::None;
  };
  if (taken != ValueId::None && all_slices(is_operand)) return taken;
  if (!is_only_cut(graph, x)) return ValueId::None;
  const bool takes_several = all_slices([&](const Node& other) { return cuts_along(graph, other, axis); });
  return from_operands(b, node, llvm::SmallVector<ValueId, 4>(concat->operands.begin(), concat->operands.end()), axis,
                       takes_several);
}

// concat(concat(a, b), c) -> concat(a, b, c)
ValueId concat(Builder& b, const Node& node) {
  llvm::SmallVector<ValueId, 8> operands;
  for (ValueId operand : node.operands) {
    const Node* inner = producer_of(b.graph(), operand, "concat");
    if (inner && inner->attrs.get_int("axis") == node.attrs.get_int("axis") && has_one_reader(b.graph(), operand))
      llvm::append_range(operands, inner->operands);
    else
      operands.push_back(operand);
  }
  return operands.size() == node.operands.size() ? ValueId::None : b.emit("concat", operands, node.attrs);
}

constexpr SimplifyEntry rules[] = {
    {"gather", gather}, {"scatter_elements", scatter_elements}, {"scatter_nd", scatter_nd}, {"slice", slice},
    {"concat", concat},
};

}  // namespace

llvm::ArrayRef<SimplifyEntry> piece_rules() { return rules; }

}  // namespace plimsoll
