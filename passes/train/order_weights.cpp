#include "ir/channels_last_weight.h"
#include "ir/support/units.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/patterns.h"

#include "llvm/ADT/STLExtras.h"

#include <map>
#include <set>

// The planning step order-weights stores weights of convolutions with channels last, as convolutions of such images
// read them and make their gradients, and with them whatever lies element by element beside a weight: its 16-bit copy,
// its moments, its running mean, the sum of its gradients over micro-batches. The transposes between go away. Files,
// first values and gradients that are handed out stay in the model's order (State::channels_last).
//
// From the weight on it follows all values that must change with it: operands and results of elementwise ops and of
// updates, states that copy another, and a state's next value, in all functions of the program. A weight stays as it is
// where this reaches anything else than a transpose to or from channels last, or a sum of squares.
//
// It is right because every op on such values does the same in any order of their elements. Sums of squares, and norms
// of gradients by blocks, run in another order.

namespace plimsoll {
namespace {

bool is_transpose_by(const Node& node, llvm::ArrayRef<int64_t> perm) {
  return node.op->name == "transpose" && node.attrs.get_ints("perm") == perm;
}

// Does it do the same to each element, wherever it lies? Draws of stochastic rounding are by an element's place.
bool is_by_element(const Node& node) {
  const llvm::StringRef op = node.op->name;
  if (op == "adamw" || op == "sgd") return node.attrs.get_int("rounding_id", 0) == 0;
  return node.op->elementwise || op == "running_update" || op == "reduce_all";
}

// One value of one function.
struct Place {
  size_t function;
  ValueId value;
  bool operator<(const Place& other) const {
    return std::pair(function, value) < std::pair(other.function, other.value);
  }
};

// One number in every element, as sums of gradients begin with, perhaps for several weights of one shape.
bool is_fill(const Graph& graph, ValueId value) {
  const Node* node = producer_of(graph, value, "expand");
  return node && graph.type(node->operands[0]).elements() == 1;
}

// By such a value, the same with channels last.
using Fills = std::map<Place, ValueId>;

// A weight and all that changes its order with it.
class TurnedWeight {
 public:
  TurnedWeight(Program& program, llvm::StringRef name, const Type& type) : program_(program), shape_(type.shape) {
    add_state(name);
    while (can_ && !open_.empty()) {
      const Place next = open_.back();
      open_.pop_back();
      follow(next);
    }
    for (size_t f = 0; f < program_.functions.size(); ++f) check_gradients(f);
  }

  // Otherwise it stays as it is.
  bool can_turn() const { return can_ && reads_ > 0; }
  int64_t bytes_of_transposes() const { return bytes_; }
  std::set<size_t> functions() const {
    std::set<size_t> touched;
    for (const Place& place : values_) touched.insert(place.function);
    return touched;
  }

  void turn(Fills& fills) {
    for (const Place& place : values_) {
      Graph& graph = program_.functions[place.function];
      const Type& type = graph.type(place.value);
      graph.set_type(place.value, Type(type.dtype, with_channels_last(type.shape)));
      for (State& state : graph.states) state.channels_last |= state.value == place.value;
    }
    for (const auto& [function, node] : transposes_) take_out(program_.functions[function], node);
    for (const Place& state : filled_) fill(state, fills);
  }

 private:
  static void take_out(Graph& graph, NodeId transpose) {
    const ValueId before = graph.node(transpose).operands[0], after = graph.node(transpose).results[0];
    for (StateGradient& gradient : graph.gradients)
      if (gradient.value == after) gradient.value = before;
    graph.replace_uses(after, before);
    graph.erase_node(transpose);
  }

  // The state begins the next call with a fill in its order.
  void fill(Place state, Fills& fills) const {
    Graph& graph = program_.functions[state.function];
    Update& update = *llvm::find_if(graph.updates, [&](const Update& each) { return each.state == state.value; });
    const auto [known, is_new] = fills.try_emplace({state.function, update.value}, ValueId::None);
    if (is_new) {
      const NodeId producer = graph.value(update.value).producer;
      Attrs attrs = graph.node(producer).attrs;
      attrs.set("shape", Ints(with_channels_last(shape_)));
      Builder b = builder_at(graph, producer);
      known->second = b.emit("expand", {graph.node(producer).operands[0]}, attrs,
                             graph.value(update.value).name + ".channels_last");
    }
    update.value = known->second;
  }

  void add(Place place) {
    if (program_.functions[place.function].type(place.value).shape != shape_) can_ = false;
    if (can_ && values_.insert(place).second) open_.push_back(place);
  }

  void add_state(llvm::StringRef name) {
    for (size_t f = 0; f < program_.functions.size(); ++f) {
      const Graph& graph = program_.functions[f];
      for (const State& state : graph.states) {
        const bool is_named = graph.value(state.value).name == name;
        const bool is_made_of_it = state.init.is_derived() && state.init.source == name;
        if (is_named || is_made_of_it) add({f, state.value});
      }
    }
  }

  void follow(Place place) {
    const Graph& graph = program_.functions[place.function];
    const Value& value = graph.value(place.value);
    can_ &= !llvm::is_contained(graph.inputs, place.value);
    for (const Output& output : graph.outputs) can_ &= output.value != place.value;
    if (!can_) return;
    for (const Update& update : graph.updates) {
      if (update.value == place.value) add({place.function, update.state});
      if (update.state != place.value) continue;
      if (is_fill(graph, update.value))
        filled_.insert(place);
      else
        add({place.function, update.value});
    }
    if (const State* state = graph.find_state(place.value)) return follow_state(place, *state);
    follow_node(place, value.producer);
  }

  void follow_state(Place place, const State& state) {
    const Graph& graph = program_.functions[place.function];
    if (!state.divisions.empty() || state.space == MemorySpace::Host || state.init.kind == StateInit::Kind::TransposeOf)
      can_ = false;
    if (state.init.is_derived()) add_state(state.init.source);
    add_state(graph.value(place.value).name);
    follow_users(place);
  }

  void follow_node(Place place, NodeId producer) {
    const Graph& graph = program_.functions[place.function];
    const Node& node = graph.node(producer);
    if (is_transpose_by(node, to_channels_second(shape_.size())))
      note_transpose(place.function, producer);
    else
      follow_operands(place.function, node);
    follow_users(place);
  }

  void follow_users(Place place) {
    const Graph& graph = program_.functions[place.function];
    for (NodeId user : graph.value(place.value).users) {
      const Node& node = graph.node(user);
      if (node.op->name == "sum_squares") continue;
      if (!is_transpose_by(node, to_channels_last(shape_.size()))) {
        follow_operands(place.function, node);
      } else {
        note_transpose(place.function, user);
        ++reads_;
      }
    }
  }

  // All of the op's operands and results change, but for single numbers and norms.
  void follow_operands(size_t function, const Node& node) {
    const Graph& graph = program_.functions[function];
    if (!is_by_element(node)) can_ = false;
    const auto follow_one = [&](ValueId value) {
      if (value == ValueId::None) return;
      const bool is_number = graph.type(value).elements() == 1, is_alike = graph.type(value).shape == shape_;
      if (is_alike)
        add({function, value});
      else if (!is_number)
        can_ = false;
    };
    if (!can_) return;
    llvm::for_each(node.operands, follow_one);
    for (size_t i = 0; i < node.results.size(); ++i)
      if (!is_norms(node, i)) follow_one(node.results[i]);
  }

  static bool is_norms(const Node& node, size_t result) {
    const bool has_copy = node.attrs.has("copy_dtype");
    return node.attrs.get_int("norms", 0) != 0 && result + (has_copy ? 2 : 1) == node.results.size();
  }

  void note_transpose(size_t function, NodeId node) {
    const Graph& graph = program_.functions[function];
    if (transposes_.insert({function, node}).second) bytes_ += 2 * graph.type(graph.node(node).results[0]).bytes();
  }

  // Who reads gradients finds their order by their parameter.
  void check_gradients(size_t f) {
    for (const StateGradient& gradient : program_.functions[f].gradients) {
      const bool state = values_.count({f, gradient.state}) > 0, value = values_.count({f, gradient.value}) > 0;
      can_ &= state == value;
    }
  }

  Program& program_;
  Shape shape_;
  std::set<Place> values_;
  std::vector<Place> open_;
  std::set<Place> filled_;  // states whose next value is a fill
  std::set<std::pair<size_t, NodeId>> transposes_;
  int64_t reads_ = 0, bytes_ = 0;
  bool can_ = true;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  std::vector<std::pair<std::string, Type>> weights;
  for (const State& state : graph.states) {
    const Type& type = graph.type(state.value);
    if (state.role == StateRole::Parameter && state.trained && !state.channels_last && type.rank() > 2)
      weights.emplace_back(graph.value(state.value).name, type);
  }
  int64_t turned = 0, bytes = 0;
  Fills fills;
  for (const auto& [name, type] : weights) {
    TurnedWeight weight(draft.program, name, type);
    if (!weight.can_turn()) continue;
    weight.turn(fills);
    for (size_t touched : weight.functions()) draft.functions[touched] = {};
    ++turned;
    bytes += weight.bytes_of_transposes();
  }
  if (turned == 0) return false;
  context.count("weights", turned);
  context.decide(
      "weights of convolutions", "stored with channels last",
      std::to_string(turned) + ", and transposes of " + format_bytes(bytes) + " read and written are left out");
  return true;
}

}  // namespace

constinit const PassInfo pass_order_weights{
    .name = "order-weights",
    .summary = "store weights of convolutions with channels last, as convolutions read them",
    .keeps_result = false,  // states in another order
    .plan = run,
};

}  // namespace plimsoll
