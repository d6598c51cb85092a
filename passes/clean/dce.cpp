#include "passes/pass/pass.h"

// Erases nodes none of whose results is read. Readers come after what they read, so one walk from the end
// suffices. Inputs and states stay: they are the graph's signature.

namespace plimsoll {
namespace {

Result<bool> run(Graph& graph, PassContext& context) {
  std::vector<bool> leaves_graph(graph.value_count());
  for (const Output& output : graph.outputs) leaves_graph[index_of(output.value)] = true;
  for (const Update& update : graph.updates) leaves_graph[index_of(update.value)] = true;
  auto is_read = [&](ValueId value) { return leaves_graph[index_of(value)] || !graph.value(value).users.empty(); };

  int64_t removed = 0;
  for (NodeId id = graph.last_node(), previous; id != NodeId::None; id = previous) {
    previous = graph.node(id).previous;
    if (llvm::any_of(graph.node(id).results, is_read)) continue;
    graph.erase_node(id);
    ++removed;
  }
  context.count("removed", removed);
  return removed > 0;
}

}  // namespace

extern const PassInfo pass_dce;
constinit const PassInfo pass_dce{
    .name = "dce",
    .summary = "erase nodes whose results nobody reads",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
