#include "passes/rewrite/patterns.h"

// Attention whose q, k and v are the three pieces of one value reads that value, and its gradient is the value's
// gradient. No split runs before it and no concatenation behind its gradient.
//
// It applies where the pieces lie in this order along the last dimension, have heads of one size and no other reader.

namespace plimsoll {
namespace {

bool try_pack(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.get_int("packed") != 0) return false;
  const Node* split = producer_of(graph, operand_of(node, "q"), "split");
  if (!split || split->attrs.get_int("axis") != 2 || split->results.size() != 3) return false;
  for (size_t i = 0; i < 3; ++i)
    if (node.operands[i] != split->results[i] || !has_one_reader(graph, split->results[i])) return false;
  const int64_t heads = node.attrs.get_int("heads"), kv_heads = node.attrs.get_int("kv_heads");
  const int64_t depth = graph.type(operand_of(node, "q")).shape[2] / heads;
  if (graph.type(operand_of(node, "v")).shape[2] != kv_heads * depth) return false;

  graph.node(id).attrs.set("packed", int64_t{1});
  graph.set_operand(id, 0, split->operands[0]);
  graph.set_operand(id, 1, ValueId::None);
  graph.set_operand(id, 2, ValueId::None);
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
