#include "passes/rewrite/patterns.h"

// Once gradients are derived, or where none will be, a detach is its operand under another name: ops on both of its
// sides may then be fused.

namespace plimsoll {
namespace {

bool try_drop(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  graph.replace_uses(node.results[0], node.operands[0]);
  return true;
}

Result<bool> run_drop_detaches(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"detach", "dropped", try_drop}});
}

}  // namespace

constinit const PassInfo pass_drop_detaches{
    .name = "drop-detaches",
    .summary = "let readers of a detached value read the value itself, since gradients are derived",
    .run = run_drop_detaches,
};

}  // namespace plimsoll
