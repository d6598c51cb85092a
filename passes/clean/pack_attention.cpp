#include "passes/rewrite/packed_heads.h"
#include "passes/rewrite/patterns.h"

// Attention whose q, k and v are the three pieces of one value reads that value, and its gradient is the value's
// gradient. No split runs before it and no concatenation behind its gradient.
//
// It applies where the pieces lie in this order along the last dimension, have heads of one size and no other reader.
// The positions of an image may be rows that are in several dimensions before.

namespace plimsoll {
namespace {

// The value whose columns the operand has, perhaps as rows of fewer dimensions; None where another node reads it too.
ValueId columns_behind(const Graph& graph, ValueId operand) {
  if (operand == ValueId::None || !has_one_reader(graph, operand)) return ValueId::None;
  const ValueId below = value_below(graph, operand, "reshape");
  if (below == ValueId::None || graph.type(below).shape.empty()) return operand;
  const bool keeps_columns = graph.type(below).shape.back() == graph.type(operand).shape.back();
  return keeps_columns && has_one_reader(graph, below) ? below : operand;
}

bool try_pack(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.get_int("packed") != 0) return false;
  const ValueId first = columns_behind(graph, operand_of(node, "q"));
  const Node* split = first == ValueId::None ? nullptr : producer_of(graph, first, "split");
  if (!split || split->results.size() != 3) return false;
  const Type whole = graph.type(split->operands[0]);
  if (split->attrs.get_int("axis") + 1 != whole.rank()) return false;
  for (size_t i = 0; i < 3; ++i)
    if (columns_behind(graph, node.operands[i]) != split->results[i]) return false;
  if (!has_heads_of_one_size(graph, node)) return false;
  Builder b = builder_at(graph, id);
  read_packed(b, id, split->operands[0]);
  return true;
}

Result<bool> run(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"attention", "packed", try_pack}});
}

}  // namespace

constinit const PassInfo pass_pack_attention{
    .name = "pack-attention",
    .summary = "let attention read q, k and v side by side where they are pieces of one value",
    .stage = Stage::Forward,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
