#include "passes/rewrite/patterns.h"

// Rotary embedding (Su et al. 2021) in the half-rotated form that language models export:
//   x * cos + concat(-x[hi], x[lo]) * sin,   x [batch, heads, time, dim], cos and sin [1 or batch, 1, time, dim]
// whose tables repeat their first half. The op reads half tables and works on [batch, time, heads * dim], so the
// transposes around it cancel against the projection and the attention. Where only the first dims of a head are turned
// and the others are joined to them again, the op reads the whole head and lets the others pass.

#include <cstring>

namespace plimsoll {
namespace {

// Equal bytes are equal numbers, and compared much faster.
bool halves_are_equal(const TensorView& tensor, int64_t row, int64_t width) {
  const int64_t half = width / 2, bytes = half * dtype_bytes(tensor.type.dtype);
  const char* first = tensor.as<char>() + 2 * bytes * row;
  if (std::memcmp(first, first + bytes, static_cast<size_t>(bytes)) == 0) return true;
  for (int64_t i = row * width; i < row * width + half; ++i)
    if (tensor.get(i) != tensor.get(i + half)) return false;
  return true;
}

// Does the last dim of `value` hold the same half twice?
bool repeats_half(const Graph& graph, ValueId value, int depth = 12) {
  const Type& type = graph.type(value);
  NodeId producer = graph.value(value).producer;
  if (type.rank() == 0 || producer == NodeId::None || depth == 0) return false;
  const Node& node = graph.node(producer);
  llvm::StringRef op = node.op->name;
  if (op == "concat")
    return node.operands.size() == 2 && node.operands[0] == node.operands[1] &&
           node.attrs.get_int("axis") == type.rank() - 1;
  if (op == "constant") {
    const TensorRef tensor = node.attrs.get_tensor("value");
    const int64_t width = type.shape.back();
    if (width == 0 || width % 2 != 0) return false;
    for (int64_t row = 0; row < type.elements() / width; ++row)
      if (!halves_are_equal(tensor->view(), row, width)) return false;
    return true;
  }
  if (op == "reshape" || op == "expand")
    return graph.type(node.operands[0]).rank() > 0 && graph.type(node.operands[0]).shape.back() == type.shape.back() &&
           repeats_half(graph, node.operands[0], depth - 1);
  if (op == "cast" || op == "cos" || op == "sin") return repeats_half(graph, node.operands[0], depth - 1);
  if (op == "mul")
    if (std::optional<WithNumber> parts = with_number(graph, node)) return repeats_half(graph, parts->value, depth - 1);
  return false;
}

// The source and start of a unit-step slice, or of a part of a split, that cuts the last dim alone. Any other value is
// its own source.
struct LastCut {
  ValueId source;
  int64_t start = 0;
};

LastCut last_cut(const Graph& graph, ValueId value) {
  if (const Node* split = producer_of(graph, value, "split")) {
    if (split->attrs.get_int("axis") != graph.type(value).rank() - 1) return {value};
    int64_t start = 0;
    for (ValueId part : split->results) {
      if (part == value) return {split->operands[0], start};
      start += graph.type(part).shape.back();
    }
  }
  const Node* slice = producer_of(graph, value, "slice");
  if (!slice) return {value};
  const Shape& shape = graph.type(slice->operands[0]).shape;
  llvm::ArrayRef<int64_t> starts = slice->attrs.get_ints("starts"), sizes = slice->attrs.get_ints("sizes"),
                          steps = slice->attrs.get_ints("steps");
  for (size_t i = 0; i < shape.size(); ++i)
    if (steps[i] != 1 || (i + 1 < shape.size() && sizes[i] != shape[i])) return {value};
  return {slice->operands[0], starts.back()};
}

// Is `value` the upper or lower half of x? Models that rotate only some of a head's dims slice x out of a wider value;
// then its halves are slices of that value.
bool slices_half(const Graph& graph, ValueId value, ValueId x, bool upper) {
  const Type& type = graph.type(x);
  LastCut half = last_cut(graph, value), whole = last_cut(graph, x);
  int64_t width = type.shape.back() / 2, start = half.start;
  if (half.source == whole.source && whole.source != x)
    start -= whole.start;
  else if (half.source != x)
    return false;
  return type.shape.back() % 2 == 0 && graph.type(value).shape.back() == width && start == (upper ? width : 0);
}

// concat(-x[hi], x[lo])
bool is_rotated(const Graph& graph, ValueId value, ValueId x) {
  const Node* concat = producer_of(graph, value, "concat");
  if (!concat || concat->operands.size() != 2 || concat->attrs.get_int("axis") != graph.type(value).rank() - 1)
    return false;
  const ValueId upper = value_below(graph, concat->operands[0], "neg");
  return upper != ValueId::None && slices_half(graph, concat->operands[1], x, false) &&
         slices_half(graph, upper, x, true);
}

struct Rotary {
  ValueId x, cos, sin;
};

std::optional<Rotary> match_rotary(const Graph& graph, const Node& add) {
  for (size_t i = 0; i < 2; ++i) {
    const Node* plain = producer_of(graph, add.operands[i], "mul");
    const Node* rotated = producer_of(graph, add.operands[1 - i], "mul");
    if (!plain || !rotated) continue;
    for (size_t j = 0; j < 2; ++j)
      for (size_t k = 0; k < 2; ++k)
        if (is_rotated(graph, rotated->operands[j], plain->operands[k]))
          return Rotary{plain->operands[k], plain->operands[1 - k], rotated->operands[1 - j]};
  }
  return std::nullopt;
}

// The shape [1 or B, 1, T, D] of a table, whose leading ones may be absent.
Shape table_shape(const Type& table) {
  Shape shape = table.shape;
  while (shape.size() < 4) shape.insert(shape.begin(), 1);
  return shape;
}

// The first half [1 or B, T, D/2] of a table.
ValueId half_table(Builder& b, ValueId table) {
  const Shape shape = table_shape(b.type(table));
  ValueId rows = b.reshape(table, {shape[0], shape[2], shape[3]});
  return b.emit(
      "slice", {rows},
      {{"starts", Ints{0, 0, 0}}, {"steps", Ints{1, 1, 1}}, {"sizes", Ints{shape[0], shape[2], shape[3] / 2}}});
}

bool is_table_for(const Type& table, const Type& x) {
  const Shape shape = table_shape(table);
  return shape.size() == 4 && (shape[0] == 1 || shape[0] == x.shape[0]) && shape[1] == 1 && shape[2] == x.shape[2] &&
         shape[3] == x.shape[3];
}

// A value, and what becomes of it where the op's rotation of its first dims is all that happens to it.
struct Turned {
  ValueId x, y;
};

// Where the rotation y of x is only joined to the other dims of the value that x was cut from, that value and the
// joined one: the op lets dims pass that it has no angles for.
Turned with_dims_that_pass(const Graph& graph, ValueId x, ValueId y) {
  const Turned alone{x, y};
  const LastCut turned = last_cut(graph, x);
  if (turned.source == x || turned.start != 0 || !has_one_reader(graph, y)) return alone;
  const Node& joined = graph.node(graph.value(y).users.front());
  const bool joins_two = joined.op->name == llvm::StringRef("concat") && joined.operands.size() == 2 &&
                         joined.operands[0] == y && joined.attrs.get_int("axis") == graph.type(y).rank() - 1;
  if (!joins_two) return alone;
  const LastCut passing = last_cut(graph, joined.operands[1]);
  const bool is_whole = passing.source == turned.source && passing.start == graph.type(x).shape.back() &&
                        graph.type(joined.results[0]) == graph.type(turned.source);
  return is_whole ? Turned{turned.source, joined.results[0]} : alone;
}

bool try_rotary(Graph& graph, NodeId id) {
  std::optional<Rotary> match = match_rotary(graph, graph.node(id));
  if (!match) return false;
  const Type type = graph.type(match->x);  // [batch, heads, time, rotated dims]
  if (type.rank() != 4 || graph.type(graph.node(id).results[0]) != type) return false;
  for (ValueId table : {match->cos, match->sin})
    if (!is_table_for(graph.type(table), type) || !repeats_half(graph, table)) return false;
  const Turned turned = with_dims_that_pass(graph, match->x, graph.node(id).results[0]);
  const int64_t batch = type.shape[0], heads = type.shape[1], time = type.shape[2], dim = graph.type(turned.x).shape[3];
  Builder b = builder_at(graph, graph.value(turned.y).producer);
  ValueId rows = b.reshape(b.transpose(turned.x, {0, 2, 1, 3}), {batch, time, heads * dim});
  ValueId rotated = b.emit("rotary", {rows, half_table(b, match->cos), half_table(b, match->sin)}, {{"heads", heads}});
  ValueId back = b.transpose(b.reshape(rotated, {batch, time, heads, dim}), {0, 2, 1, 3});
  std::string name = graph.value(turned.y).name;
  replace_and_rename(graph, turned.y, back);
  graph.rename(rotated, name + ".rotated");
  return true;
}

Result<bool> run_recover_rotary(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"add", "rotary", try_rotary}});
}

}  // namespace

constinit const PassInfo pass_recover_rotary{
    .name = "recover-rotary",
    .summary = "recover rotary position embedding from its slices and multiplications",
    .run = run_recover_rotary,
};

}  // namespace plimsoll
