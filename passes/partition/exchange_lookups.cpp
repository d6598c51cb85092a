#include "ir/division.h"
#include "passes/rewrite/patterns.h"

// The gradient of a table in which each rank looks up rows of its own samples: instead of adding up whole tables, ranks
// gather the gradients of the looked up rows, with their indices, and each makes the table's gradient of all of them.
// What else the gradient is made of, such as that of a last layer with the same weights, is added up by itself. That is
// known at the beginning of backward, while the lookup comes at its end, where nothing hides a sum.
//
// It is right because the gradient is a sum over looked up rows, whichever rank they belong to. It applies where the
// rows that a rank receives are fewer bytes than half of what a sum of tables sends and receives.

namespace plimsoll {
namespace {

struct LookupGradient {
  NodeId node = NodeId::None;
  ValueId others = ValueId::None;  // what is added to it
};

NodeId lookup_gradient(const Graph& graph, ValueId value) {
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None || graph.node(id).op->name != "gather_grad" || !has_one_reader(graph, value))
    return NodeId::None;
  return graph.node(id).attrs.get_int("axis") == 0 ? id : NodeId::None;
}

LookupGradient find_lookup(const Graph& graph, ValueId gradient) {
  if (const NodeId id = lookup_gradient(graph, gradient); id != NodeId::None)
    return {id, operand_of(graph.node(id), "addend")};
  const Node* sum = producer_of(graph, gradient, "add");
  if (!sum || !has_one_reader(graph, gradient)) return {};
  for (size_t i : {0, 1}) {
    const NodeId id = lookup_gradient(graph, sum->operands[i]);
    const ValueId others = sum->operands[1 - i];
    if (id != NodeId::None && operand_of(graph.node(id), "addend") == ValueId::None &&
        graph.type(others) == graph.type(gradient))
      return {id, others};
  }
  return {};
}

// The rows that are gathered: those of `dy` before a cast to more bits.
ValueId rows_sent(const Graph& graph, ValueId dy) {
  const Node* cast = producer_of(graph, dy, "cast");
  if (!cast) return dy;
  const ValueId narrow = operand_of(*cast, "x");
  return dtype_bytes(graph.type(narrow).dtype) < dtype_bytes(graph.type(dy).dtype) ? narrow : dy;
}

ValueId gather_rows(Builder& b, ValueId own, int64_t ranks) {
  Shape all = b.type(own).shape;
  all[0] *= ranks;
  return b.emit("gather_pieces", {own}, collective_attrs(MeshAxis::Data, ranks, all));
}

bool try_exchange(Graph& graph, NodeId sum) {
  const Attrs attrs = graph.node(sum).attrs;
  const ValueId total = graph.node(sum).results[0];
  const int64_t ranks = attrs.get_int("ranks");
  if (attrs.get_string("axis") != axis_name(MeshAxis::Data) || ranks < 2) return false;
  const LookupGradient found = find_lookup(graph, graph.node(sum).operands[0]);
  if (found.node == NodeId::None) return false;
  const Node& lookup = graph.node(found.node);
  const ValueId indices = operand_of(lookup, "indices"), dy = operand_of(lookup, "dy"), rows = rows_sent(graph, dy);
  if (graph.type(indices).rank() == 0) return false;
  const int64_t own_bytes = graph.type(rows).bytes() + graph.type(indices).bytes();
  // Sums move the table's bytes 2 (n - 1) / n times, gathers n - 1 times the rank's rows.
  if (own_bytes * ranks > graph.type(total).bytes()) return false;
  const Attrs lookup_attrs = lookup.attrs;
  Builder b = builder_at(graph, sum);
  const ValueId all_rows = b.cast(gather_rows(b, rows, ranks), graph.type(dy).dtype);
  llvm::SmallVector<ValueId, 3> operands = {gather_rows(b, indices, ranks), all_rows};
  if (found.others != ValueId::None) operands.push_back(b.emit("reduce_all", {found.others}, attrs));
  replace_and_rename(graph, total, b.emit("gather_grad", operands, lookup_attrs));
  return true;
}

Result<bool> run_exchange_lookups(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"reduce_all", "tables", try_exchange}});
}

}  // namespace

constinit const PassInfo pass_exchange_lookups{
    .name = "exchange-lookups",
    .summary = "gather the gradients of looked up rows over the ranks, where that is less than a sum of whole tables",
    .run = run_exchange_lookups,
};

}  // namespace plimsoll
