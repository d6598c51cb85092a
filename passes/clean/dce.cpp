#include "passes/analysis/dependence.h"
#include "passes/pass/pass.h"

// Erases nodes that no output, update or other stage depends on. Inputs and states stay: they are the graph's
// signature.

namespace plimsoll {
namespace {

Result<bool> run_dce(Graph& graph, PassContext& context) {
  const std::vector<bool> needed = find_needed(graph);
  int64_t removed = 0;
  for (NodeId id = graph.last_node(), previous; id != NodeId::None; id = previous) {  // readers before their operands
    previous = graph.node(id).previous;
    if (needed[index_of(id)]) continue;
    graph.erase_node(id);
    ++removed;
  }
  context.count("removed", removed);
  return removed > 0;
}

}  // namespace

constinit const PassInfo pass_dce{
    .name = "dce",
    .summary = "erase nodes that no output or update depends on",
    .run = run_dce,
};

}  // namespace plimsoll
