#pragma once

// The one intermediate representation: a graph of ops on static shapes, in SSA form.
//
// Semantics
// - A graph is a list of nodes; each comes after everything it reads. The list is also the schedule.
// - A value has one type for life: a dtype and a static shape. It is written once, by its producer.
//   Values without a producer are inputs (given anew each call) and states (what outlives a call).
// - Evaluating a graph reads inputs and states, computes every node, hands back `outputs`, and then, all
//   at once, gives each state named in `updates` its next value. Nothing else has an effect: random ops read a
//   counter that is a state, so the same counter gives the same numbers however often a node runs.
// - Floats follow IEEE 754 in their dtype, accumulation as the op's record says; integers wrap.
// - Names come from the model and survive every pass. They are unique within a graph.

#include "ir/attrs.h"
#include "ir/division.h"
#include "ir/engine.h"

#include "llvm/ADT/StringMap.h"

#include <deque>
#include <string>
#include <vector>

namespace plimsoll {

struct OpDef;

enum class ValueId : int32_t { None = -1 };
enum class NodeId : int32_t { None = -1 };
enum class OriginId : int32_t { None = -1 };

template <typename Id>
constexpr size_t index_of(Id id) {
  return static_cast<size_t>(static_cast<int32_t>(id));
}

// Where in the user's model something comes from.
struct Origin {
  std::string node;    // ONNX node name, or its first output when it has none
  std::string op;      // ONNX operator type
  std::string module;  // "transformer.h.0.attn", from metadata_props; may be empty
  std::string source;  // "model.py:137: y = self.attn(x)"; may be empty
};

llvm::StringRef space_name(MemorySpace space);  // "device", "host"

enum class Phase : uint8_t { Forward, Backward, Update };
llvm::StringRef phase_name(Phase phase);  // "forward", "backward", "update"

struct Value {
  std::string name;
  Type type;
  NodeId producer = NodeId::None;
  int32_t result_index = 0;
  llvm::SmallVector<NodeId, 2> users;  // one entry an operand; outputs and updates are not in it
};

struct Node {
  const OpDef* op = nullptr;
  llvm::SmallVector<ValueId, 4> operands;  // None where an optional operand is absent
  llvm::SmallVector<ValueId, 2> results;
  Attrs attrs;
  OriginId origin = OriginId::None;
  Phase phase = Phase::Forward;
  std::string reason;  // why a pass put it here, when that is a decision
  NodeId previous = NodeId::None, next = NodeId::None;
  bool erased = false;
};

enum class StateRole : uint8_t {
  Parameter,  // what the model learns or keeps frozen; initialised from weights
  Buffer,     // weights that are never trained: norm statistics, rotary tables
  Gradient,   // accumulates over micro-batches
  Optimizer,  // moments, momentum, master weights
  Counter,    // step and random-number counters, learning rate, loss scale, accumulated sample weight
};
llvm::StringRef role_name(StateRole role);
std::optional<StateRole> parse_role(llvm::StringRef name);

// How a state gets its first value.
struct StateInit {
  enum class Kind : uint8_t { Weights, Fill, CopyOf, TransposeOf } kind = Kind::Weights;
  double fill = 0;     // Fill: every element
  std::string source;  // Weights: the initializer's name. CopyOf, TransposeOf: the state it is made of

  bool is_derived() const { return kind == Kind::CopyOf || kind == Kind::TransposeOf; }
};

struct State {
  ValueId value = ValueId::None;  // its value at the start of a call; its name is the state's name
  StateRole role = StateRole::Parameter;
  bool trained = false;
  StateInit init;
  MemorySpace space = MemorySpace::Device;  // where it lives between its uses
  Divisions divisions;                      // not empty: it is the rank's own piece
  // It is [rows, kernel..., channels], and the model has it as [rows, channels, kernel...].
  bool channels_last = false;
  OriginId origin = OriginId::None;
};

struct Output {
  std::string name;  // the model's name for it ("loss")
  ValueId value = ValueId::None;
};

struct Update {
  ValueId state = ValueId::None;  // which state
  ValueId value = ValueId::None;  // its next value, of the same type
};

// The finished gradient of a trained state, for reports and dumps. It keeps nothing alive.
struct StateGradient {
  ValueId state = ValueId::None, value = ValueId::None;
};

class Graph {
 public:
  std::string name = "main";
  std::vector<ValueId> inputs;
  std::vector<ValueId>
      whole_inputs;  // of one rank out of several: inputs that all ranks read alike, not their own rows
  std::vector<State> states;
  std::vector<Output> outputs;
  std::vector<Update> updates;
  std::vector<StateGradient> gradients;
  std::vector<Origin> origins;

  // Values and nodes.
  const Value& value(ValueId id) const { return values_[index_of(id)]; }
  const Node& node(NodeId id) const { return nodes_[index_of(id)]; }
  Node& node(NodeId id) { return nodes_[index_of(id)]; }  // do not touch operands, results or links through it
  const Type& type(ValueId id) const { return value(id).type; }
  size_t value_count() const { return values_.size(); }  // ids ever given, erased ones included
  size_t node_slots() const { return nodes_.size(); }
  size_t node_count() const { return live_nodes_; }

  ValueId add_input(llvm::StringRef name, const Type& type);
  ValueId add_state(llvm::StringRef name, const Type& type, StateRole role, StateInit init, bool trained = false);
  // Appends before `before` (None: at the end). Result types come from the caller; use Builder, which infers them.
  NodeId add_node(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs, llvm::ArrayRef<Type> result_types,
                  llvm::ArrayRef<std::string> result_names, NodeId before = NodeId::None);
  OriginId add_origin(Origin origin);

  void set_operand(NodeId node, size_t operand, ValueId value);
  // Every use of `old`, outputs and updates included, reads `now` instead. Types must be equal.
  void replace_uses(ValueId old, ValueId now);
  void erase_node(NodeId node);                      // its results must be unused
  void move_before(NodeId node, NodeId before);      // None: to the end
  void set_type(ValueId value, const Type& type);    // for passes that re-infer the whole graph
  void rename(ValueId value, llvm::StringRef name);  // made unique when taken
  bool is_used(ValueId value) const;                 // by a node, an output or an update

  // Nodes in order. Safe while the visited node is erased if the next is taken first; `order()` copies.
  NodeId first_node() const { return first_; }
  NodeId last_node() const { return last_; }
  NodeId next_node(NodeId id) const { return node(id).next; }
  std::vector<NodeId> order() const;
  void reorder(llvm::ArrayRef<NodeId> order);  // a permutation of order()

  ValueId find_value(llvm::StringRef name) const;  // None when there is none
  const State* find_state(ValueId value) const;    // null when it is no state
  MemorySpace space(ValueId value) const;          // host: states that live there, and copies made for it
  // A name nobody has: `wanted`, or `wanted.1`, `wanted.2`, ...
  std::string unique_name(llvm::StringRef wanted);

 private:
  ValueId new_value(llvm::StringRef name, const Type& type, NodeId producer, int32_t result_index);
  void link(NodeId node, NodeId before);
  void unlink(NodeId node);

  // Deques: references stay valid while nodes are added.
  std::deque<Value> values_;
  std::deque<Node> nodes_;
  llvm::StringMap<ValueId> by_name_;
  llvm::StringMap<int32_t> next_suffix_;
  NodeId first_ = NodeId::None, last_ = NodeId::None;
  size_t live_nodes_ = 0;
};

// One training job: functions over shared states. A state is shared by its name.
struct Program {
  std::vector<Graph> functions;  // "train_step", then "update" when there is one, then "evaluate"
  Graph* find(llvm::StringRef name);
  const Graph* find(llvm::StringRef name) const;
};

}  // namespace plimsoll
