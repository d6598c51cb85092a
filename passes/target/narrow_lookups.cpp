#include "passes/rewrite/patterns.h"

// Rows that are looked up in a table and then cast to fewer bits are looked up in the narrow copy of the table, where
// one is made anyway: by a product that reads the same weights (a tied embedding), or by ranks that gather the table
// from their pieces, which then gather the narrow copy alone.
//
// It is right because a lookup moves elements and a cast works on each by itself. It does not apply before
// differentiation: the table's gradient would be summed in fewer bits.

namespace plimsoll {
namespace {

bool is_cast_to(const Node& node, DType dtype) {
  return node.op->name == "cast" && node.attrs.get_dtype("to") == dtype;
}

// Does another node than `lookup` cast the table so?
bool has_narrow_copy(const Graph& graph, ValueId table, DType dtype) {
  return llvm::any_of(graph.value(table).users, [&](NodeId user) { return is_cast_to(graph.node(user), dtype); });
}

// What ranks gather from their pieces and only cast to one type is gathered in that type.
bool narrow_gathered(Graph& graph, ValueId whole, DType dtype) {
  const Node* gathered = producer_of(graph, whole, "gather_pieces");
  if (!gathered || leaves_graph(graph, whole) || dtype_bytes(dtype) >= dtype_bytes(graph.type(whole).dtype))
    return false;
  const llvm::SmallVector<NodeId, 2> casts = graph.value(whole).users;
  if (!llvm::all_of(casts, [&](NodeId user) { return is_cast_to(graph.node(user), dtype); })) return false;
  Builder b = builder_at(graph, graph.value(whole).producer);
  Attrs attrs = gathered->attrs;
  attrs.set("to", dtype);
  const ValueId made = b.emit("gather_pieces", gathered->operands, std::move(attrs));
  for (NodeId user : casts) {
    replace_and_rename(graph, graph.node(user).results[0], made);
    graph.erase_node(user);
  }
  return true;
}

bool try_lookup(Graph& graph, NodeId cast) {
  const ValueId narrow = graph.node(cast).results[0], rows = operand_of(graph.node(cast), "x");
  const DType dtype = graph.type(narrow).dtype;
  const NodeId lookup = graph.value(rows).producer;
  if (!producer_of(graph, rows, "gather") || !has_one_reader(graph, rows)) return false;
  if (dtype_bytes(dtype) >= dtype_bytes(graph.type(rows).dtype)) return false;
  const ValueId table = operand_of(graph.node(lookup), "x"), indices = operand_of(graph.node(lookup), "indices");
  if (!has_narrow_copy(graph, table, dtype) && !producer_of(graph, table, "gather_pieces")) return false;
  Builder b = builder_at(graph, lookup);
  const Attrs attrs = graph.node(lookup).attrs;
  replace_and_rename(graph, narrow, b.emit("gather", {b.cast(table, dtype), indices}, attrs));
  graph.erase_node(cast);
  graph.erase_node(lookup);
  narrow_gathered(graph, table, dtype);
  return true;
}

bool try_gathered(Graph& graph, NodeId cast) {
  const Node& node = graph.node(cast);
  return narrow_gathered(graph, operand_of(node, "x"), node.attrs.get_dtype("to"));
}

Result<bool> run_narrow_lookups(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"cast", "lookups", try_lookup}, {"cast", "gathered", try_gathered}});
}

}  // namespace

constinit const PassInfo pass_narrow_lookups{
    .name = "narrow-lookups",
    .summary = "look rows that are cast to fewer bits up in the narrow copy of their table",
    .run = run_narrow_lookups,
};

}  // namespace plimsoll
