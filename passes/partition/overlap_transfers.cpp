#include "ir/awaited.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/plan_draft.h"

#include <algorithm>

// Lets sends and receives between stages run beside computing. A receive is issued right behind what the stage did with
// others before, and waited for by its first reader; a send is waited for where the next one is issued.
//
// Why it is right: a receive reads nothing, and what stages do together keeps its order.

namespace plimsoll {
namespace {

class TransferOverlapper {
 public:
  TransferOverlapper(PlanDraft& draft, size_t function)
      : graph_(draft.program.functions[function]),
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
      const bool moves = awaited && graph_.node(id).operands.empty();
      order.insert(moves ? order.begin() + static_cast<std::ptrdiff_t>(behind) : order.end(), id);
      if (awaited) behind = moves ? behind + 1 : order.size();
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
    .summary = "issues receives from other stages early, and lets readers and later sends wait",
    .plan = run,
};

}  // namespace plimsoll
