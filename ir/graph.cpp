#include "ir/graph.h"

#include "ir/op_def.h"

#include <algorithm>
#include <cassert>

namespace plimsoll {

llvm::StringRef space_name(MemorySpace space) { return space == MemorySpace::Device ? "device" : "host"; }

llvm::StringRef phase_name(Phase phase) {
  constexpr llvm::StringLiteral names[] = {"forward", "backward", "update"};
  return names[static_cast<size_t>(phase)];
}

constexpr llvm::StringLiteral role_names[] = {"parameter", "buffer", "gradient", "optimizer", "counter"};

llvm::StringRef role_name(StateRole role) { return role_names[static_cast<size_t>(role)]; }

std::optional<StateRole> parse_role(llvm::StringRef name) {
  for (size_t i = 0; i < std::size(role_names); ++i)
    if (role_names[i] == name) return static_cast<StateRole>(i);
  return std::nullopt;
}

ValueId Graph::new_value(llvm::StringRef name, const Type& type, NodeId producer, int32_t result_index) {
  auto id = static_cast<ValueId>(values_.size());
  std::string unique = unique_name(name);
  by_name_[unique] = id;
  values_.push_back({std::move(unique), type, producer, result_index, {}});
  return id;
}

ValueId Graph::add_input(llvm::StringRef name, const Type& type) {
  ValueId id = new_value(name, type, NodeId::None, 0);
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_state(llvm::StringRef name, const Type& type, StateRole role, StateInit init, bool trained) {
  ValueId id = new_value(name, type, NodeId::None, 0);
  states.push_back({id, role, trained, std::move(init)});
  return id;
}

NodeId Graph::add_node(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs,
                       llvm::ArrayRef<Type> result_types, llvm::ArrayRef<std::string> result_names, NodeId before) {
  auto id = static_cast<NodeId>(nodes_.size());
  nodes_.emplace_back();
  Node& fresh = nodes_.back();
  fresh.op = &op;
  fresh.operands.assign(operands.begin(), operands.end());
  fresh.attrs = std::move(attrs);
  for (ValueId operand : operands)
    if (operand != ValueId::None) values_[index_of(operand)].users.push_back(id);
  for (size_t i = 0; i < result_types.size(); ++i) {
    std::string name = i < result_names.size() ? result_names[i] : op.name.str();
    fresh.results.push_back(new_value(name, result_types[i], id, static_cast<int32_t>(i)));
  }
  link(id, before);
  ++live_nodes_;
  return id;
}

OriginId Graph::add_origin(Origin origin) {
  origins.push_back(std::move(origin));
  return static_cast<OriginId>(origins.size() - 1);
}

void Graph::link(NodeId id, NodeId before) {
  Node& node = nodes_[index_of(id)];
  node.next = before;
  node.previous = before == NodeId::None ? last_ : nodes_[index_of(before)].previous;
  (node.previous == NodeId::None ? first_ : nodes_[index_of(node.previous)].next) = id;
  (before == NodeId::None ? last_ : nodes_[index_of(before)].previous) = id;
}

void Graph::unlink(NodeId id) {
  Node& node = nodes_[index_of(id)];
  (node.previous == NodeId::None ? first_ : nodes_[index_of(node.previous)].next) = node.next;
  (node.next == NodeId::None ? last_ : nodes_[index_of(node.next)].previous) = node.previous;
}

static void drop_user(Value& value, NodeId user) {
  auto at = std::find(value.users.begin(), value.users.end(), user);
  assert(at != value.users.end() && "use lists and operands disagree");
  value.users.erase(at);
}

void Graph::set_operand(NodeId id, size_t operand, ValueId value) {
  Node& node = nodes_[index_of(id)];
  if (node.operands[operand] != ValueId::None) drop_user(values_[index_of(node.operands[operand])], id);
  node.operands[operand] = value;
  if (value != ValueId::None) values_[index_of(value)].users.push_back(id);
}

void Graph::replace_uses(ValueId old, ValueId now) {
  assert(type(old) == type(now) && "a replacement has the same type");
  if (old == now) return;
  llvm::SmallVector<NodeId, 2> users = std::move(values_[index_of(old)].users);
  values_[index_of(old)].users.clear();
  for (NodeId user : users) {
    // A user stands once for each operand; each visit moves one.
    auto& operands = nodes_[index_of(user)].operands;
    *std::find(operands.begin(), operands.end(), old) = now;
    values_[index_of(now)].users.push_back(user);
  }
  for (Output& output : outputs)
    if (output.value == old) output.value = now;
  for (Update& update : updates)
    if (update.value == old) update.value = now;
  for (StateGradient& gradient : gradients)
    if (gradient.value == old) gradient.value = now;
}

void Graph::erase_node(NodeId id) {
  Node& node = nodes_[index_of(id)];
  for (ValueId operand : node.operands)
    if (operand != ValueId::None) drop_user(values_[index_of(operand)], id);
  for (ValueId result : node.results) {
    assert(values_[index_of(result)].users.empty() && "erased node is still used");
    by_name_.erase(values_[index_of(result)].name);
  }
  unlink(id);
  node.operands.clear();
  node.attrs = Attrs();
  node.erased = true;
  --live_nodes_;
}

void Graph::move_before(NodeId id, NodeId before) {
  if (id == before) return;
  unlink(id);
  link(id, before);
}

void Graph::set_type(ValueId id, const Type& type) { values_[index_of(id)].type = type; }

void Graph::rename(ValueId id, llvm::StringRef name) {
  Value& value = values_[index_of(id)];
  if (value.name == name) return;
  by_name_.erase(value.name);
  value.name = unique_name(name);
  by_name_[value.name] = id;
}

bool Graph::is_used(ValueId id) const {
  return !value(id).users.empty() || llvm::any_of(outputs, [&](const Output& output) { return output.value == id; }) ||
         llvm::any_of(updates, [&](const Update& update) { return update.value == id; });
}

std::vector<NodeId> Graph::order() const {
  std::vector<NodeId> ids;
  ids.reserve(live_nodes_);
  for (NodeId id = first_; id != NodeId::None; id = node(id).next) ids.push_back(id);
  return ids;
}

void Graph::reorder(llvm::ArrayRef<NodeId> order) {
  assert(order.size() == live_nodes_ && "an order names every node once");
  first_ = last_ = NodeId::None;
  for (NodeId id : order) link(id, NodeId::None);
}

ValueId Graph::find_value(llvm::StringRef name) const {
  auto at = by_name_.find(name);
  return at == by_name_.end() ? ValueId::None : at->second;
}

const State* Graph::find_state(ValueId value) const {
  if (value == ValueId::None || this->value(value).producer != NodeId::None) return nullptr;
  for (const State& state : states)
    if (state.value == value) return &state;
  return nullptr;
}

MemorySpace Graph::space(ValueId id) const {
  if (NodeId producer = value(id).producer; producer != NodeId::None) return written_space(node(producer).op->engine);
  const State* state = find_state(id);
  return state ? state->space : MemorySpace::Device;
}

std::string Graph::unique_name(llvm::StringRef wanted) {
  if (!by_name_.count(wanted)) return wanted.str();
  int32_t& suffix = next_suffix_[wanted];
  std::string candidate;
  do candidate = wanted.str() + "." + std::to_string(++suffix);
  while (by_name_.count(candidate));
  return candidate;
}

Graph* Program::find(llvm::StringRef name) {
  for (Graph& function : functions)
    if (function.name == name) return &function;
  return nullptr;
}

const Graph* Program::find(llvm::StringRef name) const { return const_cast<Program*>(this)->find(name); }

}  // namespace plimsoll
