#include "passes/rewrite/patterns.h"

// Where backward reads the operand of a max pool only to find the maxima again, the pool saves the index of the
// maximum, one byte per window, for its gradient. The operand, which is larger and has wider elements, need not be
// kept.
//
// It is right because the gradient would have found the same index.

namespace plimsoll {
namespace {

constexpr int64_t max_elements = 254;  // per window, so that an index fits a byte

// The forward pool of the same operand and attributes; None where there is none.
NodeId pool_of(const Graph& graph, const Node& grad) {
  for (NodeId user : graph.value(operand_of(grad, "x")).users) {
    const Node& node = graph.node(user);
    if (node.op->name == "max_pool" && node.phase == Phase::Forward && node.attrs == grad.attrs) return user;
  }
  return NodeId::None;
}

bool is_read_elsewhere(const Graph& graph, NodeId grad) {
  const ValueId x = operand_of(graph.node(grad), "x");
  return llvm::any_of(graph.value(x).users,
                      [&](NodeId user) { return user != grad && graph.node(user).phase != Phase::Forward; });
}

bool try_save_indices(Graph& graph, NodeId id) {
  const Node& grad = graph.node(id);
  if (!is_float(graph.type(grad.operands[0]).dtype)) return false;
  const NodeId pool_id = pool_of(graph, grad);
  if (pool_id == NodeId::None || is_read_elsewhere(graph, id)) return false;
  if (element_count(grad.attrs.get_ints("kernel")) > max_elements) return false;
  const Node& pool = graph.node(pool_id);
  Attrs pool_attrs = pool.attrs, grad_attrs = grad.attrs;
  const Shape shape = graph.type(operand_of(pool, "x")).shape;
  pool_attrs.set("choices", int64_t{1});
  grad_attrs.set("shape", Ints(shape.begin(), shape.end()));
  llvm::SmallVector<ValueId, 4> made = builder_at(graph, pool_id).emit_all("max_pool", pool.operands, pool_attrs);
  replace_and_rename(graph, pool.results[0], made[0]);
  graph.rename(made[1], graph.value(made[0]).name + ".choices");
  replace_and_rename(graph, grad.results[0],
                     builder_at(graph, id).emit("max_pool_grad", {made[1], operand_of(grad, "dy")}, grad_attrs));
  graph.erase_node(pool_id);
  graph.erase_node(id);
  return true;
}

Result<bool> run_save_pool_indices(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"max_pool_grad", "pools", try_save_indices}});
}

}  // namespace

constinit const PassInfo pass_save_pool_indices{
    .name = "save-pool-indices",
    .summary = "let max pools save their indices where backward reads their operand for nothing else",
    .run = run_save_pool_indices,
};

}  // namespace plimsoll
