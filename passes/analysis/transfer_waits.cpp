#include "passes/analysis/transfer_waits.h"

#include "ir/awaited.h"
#include "passes/analysis/aliasing.h"

#include <algorithm>

namespace plimsoll {
namespace {

class Waits {
 public:
  Waits(const Graph& graph, llvm::ArrayRef<NodeId> writers)
      : graph_(graph), writers_(writers), instructions_(instructions_of(graph)), position_(graph.node_slots(), -1) {
    for (size_t i = 0; i < instructions_.size(); ++i) position_[index_of(instructions_[i])] = static_cast<int32_t>(i);
  }

  std::vector<CopyInFlight> find() const {
    std::vector<CopyInFlight> transfers;
    int32_t next_send = end();
    for (int32_t at = end() - 1; at >= 0; --at) {
      const Node& node = graph_.node(instructions_[static_cast<size_t>(at)]);
      if (!is_awaited(node) || node.op->collective) continue;
      const bool sends = !node.operands.empty();
      const int32_t done = sends ? first_write(node, next_send) : first_read(node);
      if (sends) next_send = at;
      if (done > at + 1) transfers.push_back({instructions_[static_cast<size_t>(at)], done});
    }
    return transfers;
  }

 private:
  int32_t end() const { return static_cast<int32_t>(instructions_.size()); }

  int32_t first_read(const Node& receive) const {
    int32_t first = end();
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

  const Graph& graph_;
  llvm::ArrayRef<NodeId> writers_;
  std::vector<NodeId> instructions_;
  std::vector<int32_t> position_;  // by node: its place among the instructions
};

}  // namespace

bool meets_stages(const Graph& graph) {
  return llvm::any_of(graph.order(), [&](NodeId id) { return is_awaited(graph.node(id)); });
}

std::vector<CopyInFlight> transfers_in_flight(const Graph& graph, llvm::ArrayRef<NodeId> writers) {
  return Waits(graph, writers).find();
}

}  // namespace plimsoll
