#include "passes/rewrite/packed_heads.h"
#include "passes/rewrite/patterns.h"

#include <optional>

// Attention whose q, k and v are the three pieces of one value reads that value, and its gradient is the value's
// gradient. No split runs before it and no concatenation behind its gradient.
//
// It applies where the pieces lie in this order along the columns of a row, have heads of one size and no other reader.
// The positions of an image may be rows that are in several dimensions before, and heads may have a dimension of their
// own. Where the heads of q and k turn by their
// positions, those of the whole do, in one call that leaves v as it is.

namespace plimsoll {
namespace {

// The value whose columns the operand has, perhaps as rows or columns of other dimensions; None where another node
// reads it too.
ValueId columns_behind(const Graph& graph, ValueId operand) {
  if (operand == ValueId::None || !has_one_reader(graph, operand)) return ValueId::None;
  const ValueId below = value_below(graph, operand, "reshape");
  return below != ValueId::None && has_one_reader(graph, below) ? below : operand;
}

// Of a value whose columns begin at the dimension.
int64_t columns_from(const Graph& graph, ValueId value, int64_t first) {
  return element_count(llvm::ArrayRef<int64_t>(graph.type(value).shape).drop_front(static_cast<size_t>(first)));
}

// The rotation whose rows the operand has; null where there is none, another node reads it or not all heads turn.
const Node* rotation_behind(const Graph& graph, ValueId operand) {
  const ValueId turned = columns_behind(graph, operand);
  const Node* rotary = producer_of(graph, turned, "rotary");
  const bool is_of_rows = rotary && graph.type(turned).shape.back() == graph.type(operand).shape.back();
  return is_of_rows && rotary->attrs.get_int("turned") == 0 ? rotary : nullptr;
}

// Do both turn heads of one size in the same way?
bool turn_alike(const Graph& graph, const Node& q, const Node& k) {
  const auto depth = [&](const Node& node) {
    return graph.type(node.results[0]).shape.back() / node.attrs.get_int("heads");
  };
  const auto same = [&](llvm::StringRef attr) { return q.attrs.get_int(attr) == k.attrs.get_int(attr); };
  return q.operands[1] == k.operands[1] && q.operands[2] == k.operands[2] && same("interleaved") && same("inverse") &&
         depth(q) == depth(k);
}

bool try_pack(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.get_int("packed") != 0 || !has_heads_of_one_size(graph, node)) return false;
  llvm::SmallVector<ValueId, 3> operands(node.operands.begin(), node.operands.begin() + 3);
  const Node *q_rotary = rotation_behind(graph, operands[0]), *k_rotary = rotation_behind(graph, operands[1]);
  if (!q_rotary != !k_rotary) return false;
  if (q_rotary) {
    if (q_rotary->attrs.get_int("heads") != node.attrs.get_int("heads") || !turn_alike(graph, *q_rotary, *k_rotary))
      return false;
    operands[0] = q_rotary->operands[0];
    operands[1] = k_rotary->operands[0];
  }
  const ValueId first = columns_behind(graph, operands[0]);
  const Node* split = first == ValueId::None ? nullptr : producer_of(graph, first, "split");
  if (!split || split->results.size() != 3) return false;
  const ValueId whole = split->operands[0];
  const int64_t axis = split->attrs.get_int("axis");
  for (size_t i = 0; i < 3; ++i)
    if (columns_behind(graph, operands[i]) != split->results[i] ||
        columns_from(graph, split->results[i], axis) != graph.type(operands[i]).shape.back())
      return false;
  std::optional<Node> rotary;
  if (q_rotary) {
    rotary = *q_rotary;
    const int64_t heads = node.attrs.get_int("heads"), kv_heads = node.attrs.get_int("kv_heads");
    rotary->attrs.set("heads", heads + 2 * kv_heads);
    rotary->attrs.set("turned", heads + kv_heads);
  }
  Builder b = builder_at(graph, id);
  ValueId packed = as_rows_of_q(b, id, whole, columns_from(graph, whole, axis));
  if (rotary) {
    b.origin = rotary->origin;
    packed = b.emit("rotary", {packed, rotary->operands[1], rotary->operands[2]}, rotary->attrs);
  }
  read_packed(b, id, packed);
  return true;
}

Result<bool> run_pack_attention(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"attention", "packed", try_pack}});
}

}  // namespace

constinit const PassInfo pass_pack_attention{
    .name = "pack-attention",
    .summary = "let attention read q, k and v side by side where they are pieces of one value",
    .stage = Stage::Forward,
    .keeps_result = true,
    .run = run_pack_attention,
};

}  // namespace plimsoll
