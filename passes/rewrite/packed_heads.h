#pragma once

// Attention whose q, k and v are columns of one value, in this order, reads that value instead of three.

#include "passes/rewrite/match.h"

namespace plimsoll {

// Can the node's operands be such columns? All heads have one size then.
inline bool has_heads_of_one_size(const Graph& graph, const Node& attention) {
  const int64_t q = graph.type(operand_of(attention, "q")).shape.back(),
                v = graph.type(operand_of(attention, "v")).shape.back();
  return v * attention.attrs.get_int("heads") == q * attention.attrs.get_int("kv_heads");
}

// `whole`, whose rows may be in other dimensions than those of q, in q's. The builder adds nodes before the attention.
inline ValueId as_rows_of_q(Builder& b, NodeId attention, ValueId whole, int64_t columns) {
  const Shape rows = b.type(operand_of(b.graph().node(attention), "q")).shape;
  return b.reshape(whole, {rows[0], rows[1], columns});
}

inline void read_packed(Builder& b, NodeId attention, ValueId packed) {
  Graph& graph = b.graph();
  graph.node(attention).attrs.set("packed", int64_t{1});
  graph.set_operand(attention, 0, packed);
  graph.set_operand(attention, 1, ValueId::None);
  graph.set_operand(attention, 2, ValueId::None);
}

}  // namespace plimsoll
