#include "ir/verify.h"

// Counts everything again from the nodes' operands and compares with what the graph keeps. Trusts no index
// before it has been checked.

#include "ir/op_def.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph), defined_(graph.value_count()), state_of_(graph.value_count()), users_(graph.value_count()) {}

  Status run() {
    if (Status s = check_sources()) return s;
    if (Status s = check_nodes()) return s;
    if (Status s = check_use_lists()) return s;
    if (Status s = check_states()) return s;
    if (Status s = check_outputs()) return s;
    return check_updates();
  }

 private:
  static Status wrong(llvm::StringRef where, const llvm::Twine& what) {
    return model_error("verify: " + where + ": " + what);
  }
  bool is_defined(ValueId id) const {
    return index_of(id) < defined_.size() && defined_[index_of(id)];  // None is larger than any index
  }

  // As Graph has it, which looks through all states.
  MemorySpace space(ValueId id) const {
    if (const NodeId producer = graph_.value(id).producer; producer != NodeId::None)
      return written_space(graph_.node(producer).op->engine);
    const State* state = state_of_[index_of(id)];
    return state ? state->space : MemorySpace::Device;
  }

  Status define(ValueId id, NodeId producer, size_t result) {
    if (index_of(id) >= defined_.size()) return wrong(graph_.name, "a value id is out of range");
    const Value& value = graph_.value(id);
    if (defined_[index_of(id)]) return wrong(value.name, "is written twice");
    if (value.producer != producer || static_cast<size_t>(value.result_index) != result)
      return wrong(value.name, "does not know its producer");
    if (graph_.find_value(value.name) != id) return wrong(value.name, "its name leads to another value");
    for (int64_t dim : value.type.shape)
      if (dim < 0) return wrong(value.name, "has a negative dimension: " + to_string(value.type));
    defined_[index_of(id)] = true;
    return Status::success();
  }

  Status check_sources() {
    for (ValueId input : graph_.inputs)
      if (Status s = define(input, NodeId::None, 0)) return s;
    for (const State& state : graph_.states) {
      if (Status s = define(state.value, NodeId::None, 0)) return s;
      state_of_[index_of(state.value)] = &state;
    }
    return Status::success();
  }

  Status check_nodes() {
    size_t count = 0;
    NodeId previous = NodeId::None;
    for (NodeId id = graph_.first_node(); id != NodeId::None; previous = id, id = graph_.next_node(id)) {
      const Node& node = graph_.node(id);
      if (node.previous != previous || node.erased || ++count > graph_.node_count())
        return wrong(node.op->name, "the node list is broken");
      if (Status s = check_node(id, node)) return s;
    }
    if (count != graph_.node_count() || previous != graph_.last_node())
      return wrong(graph_.name, "the node list is broken");
    return Status::success();
  }

  Status check_node(NodeId id, const Node& node) {
    for (auto it : llvm::enumerate(node.operands)) {
      if (it.value() == ValueId::None) continue;
      if (!is_defined(it.value()))
        return wrong(name_of(node), "operand " + llvm::Twine(it.index()) + " is not written before it");
      if (space(it.value()) != read_space(node.op->engine))
        return wrong(name_of(node),
                     "operand " + llvm::Twine(it.index()) + " is in " + space_name(space(it.value())) + " memory");
      users_[index_of(it.value())].push_back(id);
    }
    if (node.origin != OriginId::None && index_of(node.origin) >= graph_.origins.size())
      return wrong(name_of(node), "its origin is not listed");
    for (auto it : llvm::enumerate(node.results))
      if (Status s = define(it.value(), id, it.index())) return s;
    return check_types(node);
  }

  std::string name_of(const Node& node) const {
    if (node.results.empty()) return node.op->name.str();
    return (graph_.value(node.results[0]).name + " (" + node.op->name + ")").str();
  }

  Status check_types(const Node& node) const {
    llvm::SmallVector<const Type*, 4> operands = operand_types(graph_, node);
    Result<Types> inferred = infer(OpCall(*node.op, node.attrs, operands));
    if (!inferred) return in_context("verify: " + name_of(node), inferred.takeError());
    if (inferred->size() != node.results.size())
      return wrong(name_of(node),
                   "has " + llvm::Twine(node.results.size()) + " results, its op " + llvm::Twine(inferred->size()));
    for (auto [result, type] : llvm::zip(node.results, *inferred))
      if (graph_.type(result) != type)
        return wrong(name_of(node), graph_.value(result).name + " is " + to_string(graph_.type(result)) +
                                        ", its op gives " + to_string(type));
    return Status::success();
  }

  Status check_use_lists() {
    for (size_t i = 0; i < users_.size(); ++i) {
      if (!defined_[i]) continue;
      const Value& value = graph_.value(static_cast<ValueId>(i));
      llvm::SmallVector<NodeId, 8> kept(value.users.begin(), value.users.end()),
          counted(users_[i].begin(), users_[i].end());
      llvm::sort(kept);
      llvm::sort(counted);
      if (kept != counted)
        return wrong(value.name, "its use list has " + llvm::Twine(kept.size()) + " entries, its readers are " +
                                     llvm::Twine(counted.size()));
    }
    return Status::success();
  }

  Status check_states() const {
    for (const State& state : graph_.states) {
      const Value& value = graph_.value(state.value);
      bool learns = state.role == StateRole::Parameter || state.role == StateRole::Buffer;
      if (state.trained && (!learns || !is_float(value.type.dtype)))
        return wrong(value.name, "a " + role_name(state.role) + " of " + to_string(value.type) + " cannot be trained");
      if (state.channels_last && (value.type.rank() < 3 || !state.divisions.empty()))
        return wrong(value.name, to_string(value.type) +
                                     (state.divisions.empty() ? " has no channels and kernel" : " is a piece") +
                                     ", and has channels last");
      if (!state.init.is_derived()) continue;
      ValueId source = graph_.find_value(state.init.source);
      // A function need not hold the source; then another one of its program does. The copy may be a rank's piece of
      // it.
      const State* original = source == ValueId::None ? nullptr : state_of_[index_of(source)];
      if (original && state.init.kind == StateInit::Kind::TransposeOf) {
        if (Status s = check_transpose(state, *original)) return s;
        continue;
      }
      if (original && original->channels_last != state.channels_last)
        return wrong(value.name, "has channels " + order_name(state) + ", and " + state.init.source + " has them " +
                                     order_name(*original));
      if (original &&
          whole_shape(original->divisions, graph_.type(source).shape) != whole_shape(state.divisions, value.type.shape))
        return wrong(value.name,
                     "is " + to_string(value.type) + " but starts as a copy of " + to_string(graph_.type(source)));
    }
    return Status::success();
  }

  static std::string order_name(const State& state) { return state.channels_last ? "last" : "in the model's place"; }

  // A transpose is made once, so neither of the two may change.
  Status check_transpose(const State& state, const State& original) const {
    const Value &value = graph_.value(state.value), &source = graph_.value(original.value);
    if (!is_transpose(source.type, value.type) || !state.divisions.empty() || !original.divisions.empty())
      return wrong(value.name, "is " + to_string(value.type) + " but the transpose of " + to_string(source.type));
    for (const Update& update : graph_.updates)
      if (update.state == state.value || update.state == original.value)
        return wrong(value.name,
                     "is the transpose of " + source.name + ", and a step changes " + graph_.value(update.state).name);
    return Status::success();
  }

  Status check_outputs() const {
    llvm::StringSet<> names;
    for (const Output& output : graph_.outputs) {
      if (!is_defined(output.value)) return wrong(output.name, "the output has no value");
      if (space(output.value) != MemorySpace::Device) return wrong(output.name, "the output is in host memory");
      if (!names.insert(output.name).second) return wrong(output.name, "two outputs have this name");
    }
    return Status::success();
  }

  Status check_updates() const {
    std::vector<bool> is_state(graph_.value_count()), is_updated(graph_.value_count());
    std::vector<int64_t> in_pieces(graph_.value_count(), 0);  // by state: elements of the pieces so far
    for (const State& state : graph_.states) is_state[index_of(state.value)] = true;
    for (const Update& update : graph_.updates) {
      if (!is_defined(update.state) || !is_state[index_of(update.state)])
        return wrong(graph_.name, "an update has no state");
      const Value& state = graph_.value(update.state);
      if (!is_defined(update.value)) return wrong(state.name, "its update has no value");
      const Type& type = graph_.type(update.value);
      int64_t& elements = in_pieces[index_of(update.state)];
      if (is_updated[index_of(update.state)] && (elements == 0 || elements == state.type.elements()))
        return wrong(state.name, "is updated twice");
      is_updated[index_of(update.state)] = true;
      if (const std::optional<int64_t> begin = begin_of_piece(graph_, update)) {
        if (*begin != elements)
          return wrong(state.name, "its next value is made up to element " + llvm::Twine(elements) +
                                       ", the next piece begins at " + llvm::Twine(*begin));
        elements += type.elements();
      } else if (type != state.type) {
        return wrong(state.name, "is " + to_string(state.type) + ", its update " + to_string(type));
      }
      if (space(update.value) != space(update.state))
        return wrong(state.name, "is in " + space_name(space(update.state)) + " memory, its update is not");
    }
    for (const State& state : graph_.states)
      if (const int64_t elements = in_pieces[index_of(state.value)];
          elements > 0 && elements != graph_.type(state.value).elements())
        return wrong(graph_.value(state.value).name, "its next value is made up to element " + llvm::Twine(elements));
    return Status::success();
  }

  const Graph& graph_;
  std::vector<bool> defined_;
  std::vector<const State*> state_of_;               // by value; null: it is no state
  std::vector<llvm::SmallVector<NodeId, 2>> users_;  // as counted from operands
};

bool same_init(const StateInit& a, const StateInit& b) {
  return a.kind == b.kind && a.fill == b.fill && a.source == b.source;
}

std::string described(const Type& type, const State& state) {
  return to_string(type) + " " + role_name(state.role).str() + (state.space == MemorySpace::Host ? " host" : "");
}

}  // namespace

std::optional<int64_t> begin_of_piece(const Graph& graph, const Update& update) {
  const Value& value = graph.value(update.value);
  const Type& state = graph.type(update.state);
  if (value.producer == NodeId::None || graph.node(value.producer).op->engine != Engine::ToHost) return std::nullopt;
  const Attrs& attrs = graph.node(value.producer).attrs;
  if (!attrs.has("begin") || value.type.dtype != state.dtype || value.type.rank() != 1) return std::nullopt;
  return attrs.get_int("begin");
}

Status verify(const Graph& graph) { return Verifier(graph).run(); }

Status verify(const Program& program) {
  llvm::StringMap<std::pair<const Graph*, const State*>> shared;
  llvm::StringSet<> names;
  for (const Graph& function : program.functions) {
    if (Status s = verify(function)) return in_context("@" + function.name, std::move(s));
    if (!names.insert(function.name).second) return model_error("verify: two functions are named @" + function.name);
    for (const State& state : function.states) {
      const Value& value = function.value(state.value);
      auto [at, first] = shared.try_emplace(value.name, &function, &state);
      if (first) continue;
      auto [other_function, other] = at->second;
      const Type& other_type = other_function->type(other->value);
      if (other_type != value.type || other->role != state.role || other->trained != state.trained ||
          other->space != state.space || other->divisions != state.divisions || !same_init(other->init, state.init))
        return model_error("verify: state " + value.name + " differs between @" + other_function->name + " (" +
                           described(other_type, *other) + ") and @" + function.name + " (" +
                           described(value.type, state) + ")");
    }
  }
  return Status::success();
}

}  // namespace plimsoll
