#include "ir/awaited.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/analysis/transfer_waits.h"

// Lets sends and receives between stages run beside computing. A receive is issued as far ahead of its first reader as
// hides a transfer of what has been sent already: one that waits for its sender holds multiprocessors all the while.
// A send is waited for where the next one is issued.
//
// Why it is right: a receive reads nothing, and what stages do together keeps its order.

namespace plimsoll {
namespace {

void move_receives(const PlanDraft& draft, Graph& graph) {
  const auto us_of = [&](NodeId id) {
    const Node& node = graph.node(id);
    return is_instruction(node) ? predicted_us(graph, node, chosen_kernel(graph, node, *draft.catalog), draft.device)
                                : 0;
  };
  std::vector<NodeId> order;
  size_t behind = 0;  // the place behind the last node that another stage waits for
  for (NodeId id : graph.order()) {
    const bool awaited = is_awaited(graph.node(id));
    size_t at = order.size();
    if (awaited && graph.node(id).op->name == "receive") {
      // Beside computing a transfer is slower, and no prediction is exact.
      const double hiding_us = 2 * us_of(id) / draft.device.collective_share;
      for (double ahead_us = 0; at > behind && ahead_us < hiding_us; --at) ahead_us += us_of(order[at - 1]);
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), id);
    if (awaited) behind = at + 1;
  }
  graph.reorder(order);
}

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  if (!meets_stages(graph)) return false;
  move_receives(draft, graph);
  draft.drop_layout(function);
  std::vector<CopyInFlight>& copies = draft.functions[function].copies;
  copies = transfers_in_flight(graph, draft.writers(function));
  context.count("beside computing", static_cast<int64_t>(copies.size()));
  return !copies.empty();
}

}  // namespace

constinit const PassInfo pass_overlap_transfers{
    .name = "overlap-transfers",
    .summary = "issues receives from other stages just ahead of their readers, and lets readers and later sends wait",
    .plan = run,
};

}  // namespace plimsoll
