#include "ir/awaited.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"

#include <algorithm>

// Lets sends and receives between stages run beside computing. A receive is issued as far ahead of its first reader as
// hides a transfer of what has been sent already: one that waits for its sender holds multiprocessors all the while.
// A send is waited for where the next one is issued.
//
// Why it is right: a receive reads nothing, and what stages do together keeps its order.

namespace plimsoll {
namespace {

class TransferOverlapper {
 public:
  TransferOverlapper(PlanDraft& draft, size_t function)
      : draft_(draft),
        graph_(draft.program.functions[function]),
        function_(draft.functions[function]),
        writers_(draft.writers(function)) {}

  // False where no stage is met.
  bool move_receives() {
    std::vector<NodeId> order;
    size_t behind = 0;  // the place behind the last node that another stage waits for
    bool any = false;
    for (NodeId id : graph_.order()) {
      const bool awaited = is_awaited(graph_.node(id));
      any |= awaited;
      size_t at = order.size();
      if (awaited && graph_.node(id).operands.empty())
        for (double ahead_us = 0; at > behind && ahead_us < hiding_us(id); --at) ahead_us += us_of(order[at - 1]);
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), id);
      if (awaited) behind = at + 1;
    }
    graph_.reorder(order);
    return any;
  }

  int64_t set_waits() {
    position_.assign(graph_.node_slots(), -1);
    for (NodeId id : instructions_of(graph_)) position_[index_of(id)] = count_++;
    int32_t next_send = count_;
    int64_t beside = 0;
    std::vector<NodeId> order = graph_.order();
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Node& node = graph_.node(*id);
      if (!is_awaited(node) || node.op->collective) continue;
      const bool sends = !node.operands.empty();
      const int32_t at = position_[index_of(*id)], done = sends ? first_write(node, next_send) : first_read(node);
      if (sends) next_send = at;
      if (done <= at + 1) continue;
      function_.copies.push_back({*id, done});
      ++beside;
    }
    return beside;
  }

 private:
  double us_of(NodeId id) const {
    const Node& node = graph_.node(id);
    return is_instruction(node)
               ? predicted_us(graph_, node, chosen_kernel(graph_, node, *draft_.catalog), draft_.device)
               : 0;
  }
  // Beside computing a transfer is slower, and no prediction is exact.
  double hiding_us(NodeId receive) const { return 2 * us_of(receive) / draft_.device.collective_share; }

  int32_t first_read(const Node& receive) const {
    int32_t first = count_;
    for (NodeId reader : readers_of(graph_, receive.results.front()))
      first = std::min(first, position_[index_of(reader)]);
    return first;
  }

  // Where a state that is sent gets its next value, at the latest `otherwise`.
  int32_t first_write(const Node& send, int32_t otherwise) const {
    const ValueId source = root_of(graph_, send.operands.front());
    for (size_t i = 0; i < writers_.size(); ++i)
      if (graph_.updates[i].state == source) otherwise = std::min(otherwise, position_[index_of(writers_[i])]);
    return otherwise;
  }

  const PlanDraft& draft_;
  Graph& graph_;
  FunctionDraft& function_;
  const std::vector<NodeId>& writers_;
  std::vector<int32_t> position_;  // by node: its place among the instructions
  int32_t count_ = 0;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  TransferOverlapper overlapper(draft, function);
  if (!overlapper.move_receives()) return false;
  draft.drop_layout(function);
  const int64_t beside = overlapper.set_waits();
  context.count("beside computing", beside);
  return beside > 0;
}

}  // namespace

constinit const PassInfo pass_overlap_transfers{
    .name = "overlap-transfers",
    .summary = "issues receives from other stages just ahead of their readers, and lets readers and later sends wait",
    .plan = run,
};

}  // namespace plimsoll
