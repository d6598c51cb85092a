#include "passes/rewrite/patterns.h"

namespace plimsoll {

static bool is_replaced(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return node.erased || llvm::none_of(node.results, [&](ValueId result) { return graph.is_used(result); });
}

bool apply_patterns(Graph& graph, PassContext& context, std::initializer_list<Pattern> patterns) {
  bool changed = false;
  for (NodeId id : graph.order())
    for (const Pattern& pattern : patterns) {
      if (graph.node(id).erased) break;
      if (!pattern.op.empty() && pattern.op != graph.node(id).op->name) continue;
      const int64_t rewrites = pattern.rewrite(graph, id);
      context.count(pattern.name, rewrites);
      changed |= rewrites > 0;
      if (rewrites > 0 && is_replaced(graph, id)) break;
    }
  return changed;
}

}  // namespace plimsoll
