#pragma once

// Where each value of a pipeline's program is. It has a place: one run of layers, or any, where each stage that reads
// it can compute it. A transfer moves a value to another run; what runs of several stages add up is then on all of
// them.

#include "ir/op_def.h"
#include "passes/partition/pipeline_schedule.h"

#include "llvm/ADT/StringMap.h"

#include <map>

namespace plimsoll {

inline constexpr int32_t any_run = -1;

inline bool moves_between_runs(const Node& node) { return node.op->name == "transfer"; }
inline int32_t sending_run(const Node& transfer) { return static_cast<int32_t>(transfer.attrs.get_int("from")); }
inline int32_t receiving_run(const Node& transfer) { return static_cast<int32_t>(transfer.attrs.get_int("to")); }

// Transfers, and which stages they are between.
class Routes {
 public:
  explicit Routes(const StageRuns& runs) : runs_(runs) {}

  int32_t stage_of(int32_t run) const { return static_cast<int32_t>(runs_.stage_of(run)); }
  int32_t sender_of(const Node& transfer) const { return stage_of(sending_run(transfer)); }
  int32_t receiver_of(const Node& transfer) const { return stage_of(receiving_run(transfer)); }
  // From stage to stage. What goes from run to run of one stage stays where it is.
  bool is_transfer(const Node& node) const { return moves_between_runs(node) && sender_of(node) != receiver_of(node); }
  const StageRuns& runs() const { return runs_; }

 private:
  const StageRuns& runs_;
};

// By name of a state that one stage alone updates: the run that makes its next value.
using Owners = llvm::StringMap<int32_t>;

// Where the values of one function of the program are.
class Places {
 public:
  Places(const Graph& graph, const Routes& routes, const Owners& owners)
      : graph_(graph),
        routes_(routes),
        place_(graph.value_count(), any_run),
        is_state_(graph.value_count(), false),
        is_of_states_(graph.value_count(), false),
        position_(graph.node_slots(), 0) {
    for (const State& state : graph.states) {
      place_[index_of(state.value)] = owner_in(owners, state.value);
      is_state_[index_of(state.value)] = is_of_states_[index_of(state.value)] = true;
    }
  }

  // Finds them, and adds to `owners`. Errors name what reads values of several stages.
  Status find(Owners& owners);

  // A run, or any.
  int32_t of(ValueId value) const { return place_[index_of(value)]; }
  bool is_on(ValueId value, int32_t stage) const {
    return of(value) != any_run && routes_.stage_of(of(value)) == stage;
  }
  bool is_state(ValueId value) const { return is_state_[index_of(value)]; }
  // Of the node in the function's order.
  int32_t position_of(NodeId id) const { return position_[index_of(id)]; }
  // From stage to stage, in order.
  llvm::ArrayRef<NodeId> transfers() const { return transfers_; }
  // Sums over stages, in order.
  llvm::ArrayRef<NodeId> joint_sums() const { return joint_sums_; }
  bool is_joint_sum(NodeId id) const { return llvm::is_contained(joint_sums_, id); }
  // Of a transfer: how many go from the same stage to the same one before it.
  int64_t number_of(NodeId transfer) const { return numbers_.at(transfer); }

 private:
  int32_t owner_in(const Owners& owners, ValueId state) const;
  bool same_stage(int32_t a, int32_t b) const { return routes_.stage_of(a) == routes_.stage_of(b); }

  Status visit(NodeId id);
  Status wrong(const Node& node, const llvm::Twine& what) const;

  const Graph& graph_;
  const Routes& routes_;
  std::vector<int32_t> place_;      // by value
  std::vector<bool> is_state_;      // by value
  std::vector<bool> is_of_states_;  // by value: a state, or made of states alone
  std::vector<int32_t> position_;   // by node
  std::vector<NodeId> transfers_, joint_sums_;
  std::map<NodeId, int64_t> numbers_;                    // by transfer
  std::map<std::pair<int32_t, int32_t>, int64_t> sent_;  // from one stage to another, so far
};

}  // namespace plimsoll
