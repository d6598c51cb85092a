#pragma once

// One function of the program on one stage of a pipeline: what its sinks need, and then its graph. Transfers become
// sends and receives, a sum over values of several stages a sum over the stages, and an output that one stage has a
// broadcast.

#include "ir/builder.h"
#include "passes/partition/stage_places.h"

#include "llvm/ADT/StringSet.h"

#include <set>

namespace plimsoll {

class FunctionOnStage {
 public:
  FunctionOnStage(const Graph& graph, const Places& places, const Routes& routes, int32_t stage)
      : graph_(graph),
        places_(places),
        routes_(routes),
        stage_(stage),
        needed_(graph.node_slots(), false),
        value_(graph.value_count(), ValueId::None) {}

  // All that the stage gives to others, and the next values of the states in `own`.
  void need_sinks(const llvm::StringSet<>& own);

  // Is the value on the stage, or can it be computed there?
  bool is_here(ValueId value) const { return places_.of(value) == any_run || places_.is_on(value, stage_); }
  // States that needed values read.
  const llvm::StringSet<>& states() const { return states_; }
  bool is_needed(NodeId id) const { return needed_[index_of(id)]; }
  // The needed nodes, and transfers that the stage sends, in the order of the whole graph.
  std::vector<NodeId> nodes() const;

  // The graph with the states in `own`; `order` has all needed nodes.
  Graph make(const llvm::StringSet<>& own, llvm::ArrayRef<NodeId> order);

 private:
  std::vector<bool> values_named(const llvm::StringSet<>& names) const;  // by value of the graph
  void need(ValueId value);
  void need_node(NodeId id);
  Attrs group() const;
  Attrs end_attrs(NodeId id, int32_t peer) const;
  void copy_node(Graph& to, Builder& b, NodeId id);
  void copy_transfer(Builder& b, NodeId id);
  void copy_joint_sum(Builder& b, NodeId id);
  ValueId broadcast_of(Builder& b, ValueId value, llvm::StringRef name) const;
  ValueId summed_over_stages(Builder& b, ValueId own, const Type& type, llvm::StringRef name) const;

  const Graph& graph_;
  const Places& places_;
  const Routes& routes_;
  int32_t stage_;
  std::vector<bool> needed_;   // by node
  std::vector<NodeId> nodes_;  // that are needed
  llvm::StringSet<> states_;
  std::set<ValueId> inputs_;    // and states
  std::vector<ValueId> value_;  // by value of the whole graph: the stage's
};

}  // namespace plimsoll
