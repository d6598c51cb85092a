#include "passes/partition/function_on_stage.h"

namespace plimsoll {

std::vector<bool> FunctionOnStage::values_named(const llvm::StringSet<>& names) const {
  std::vector<bool> named(graph_.value_count(), false);
  for (const auto& name : names)
    if (const ValueId value = graph_.find_value(name.first()); value != ValueId::None) named[index_of(value)] = true;
  return named;
}

void FunctionOnStage::need_sinks(const llvm::StringSet<>& own) {
  for (NodeId id : places_.transfers())
    if (routes_.sender_of(graph_.node(id)) == stage_) need(graph_.node(id).operands.front());
  for (NodeId id : places_.joint_sums()) need_node(id);
  for (const Output& output : graph_.outputs)
    if (is_here(output.value)) need(output.value);
  const std::vector<bool> is_own = values_named(own);
  for (const Update& update : graph_.updates)
    if (is_own[index_of(update.state)]) need(update.value);
}

void FunctionOnStage::need(ValueId value) {
  const NodeId producer = graph_.value(value).producer;
  if (producer != NodeId::None) return need_node(producer);
  if (places_.is_state(value)) states_.insert(graph_.value(value).name);
  inputs_.insert(value);
}

void FunctionOnStage::need_node(NodeId id) {
  if (needed_[index_of(id)]) return;
  needed_[index_of(id)] = true;
  nodes_.push_back(id);
  const Node& node = graph_.node(id);
  if (routes_.is_transfer(node)) return;  // received
  for (ValueId operand : node.operands)
    if (operand != ValueId::None && is_here(operand)) need(operand);
}

std::vector<NodeId> FunctionOnStage::nodes() const {
  std::vector<NodeId> nodes = nodes_;
  for (NodeId id : places_.transfers())
    if (routes_.sender_of(graph_.node(id)) == stage_ && !is_needed(id)) nodes.push_back(id);
  llvm::sort(nodes, [&](NodeId a, NodeId b) { return places_.position_of(a) < places_.position_of(b); });
  return nodes;
}

Attrs FunctionOnStage::group() const { return {{"axis", std::string("stage")}, {"ranks", routes_.runs().stages}}; }
Attrs FunctionOnStage::end_attrs(NodeId id, int32_t peer) const {
  Attrs attrs = group();
  attrs.set("peer", int64_t{peer});
  attrs.set("number", places_.number_of(id));
  return attrs;
}

ValueId FunctionOnStage::summed_over_stages(Builder& b, ValueId own, const Type& type, llvm::StringRef name) const {
  if (own == ValueId::None) own = b.emit("expand", {b.scalar(0, type.dtype)}, {{"shape", Ints(type.shape)}});
  return b.emit("reduce_all", {own}, group(), name);
}

ValueId FunctionOnStage::broadcast_of(Builder& b, ValueId value, llvm::StringRef name) const {
  const int32_t root = routes_.stage_of(places_.of(value));
  Attrs attrs = group();
  attrs.set("root", int64_t{root});
  if (root == stage_) return b.emit("broadcast", {value_[index_of(value)]}, attrs, name);
  attrs.set("dtype", graph_.type(value).dtype);
  attrs.set("shape", Ints(graph_.type(value).shape));
  return b.emit("broadcast", {}, attrs, name);
}

void FunctionOnStage::copy_transfer(Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  if (routes_.sender_of(node) == stage_) {
    b.emit("send", {value_[index_of(node.operands.front())]}, end_attrs(id, routes_.receiver_of(node)),
           graph_.value(node.results.front()).name + ".sent");
    return;
  }
  const Type& type = graph_.type(node.results.front());
  Attrs attrs = end_attrs(id, routes_.sender_of(node));
  attrs.set("dtype", type.dtype);
  attrs.set("shape", Ints(type.shape));
  value_[index_of(node.results.front())] =
      b.emit("receive", {}, std::move(attrs), graph_.value(node.results.front()).name);
}

void FunctionOnStage::copy_joint_sum(Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  llvm::SmallVector<ValueId, 16> own;
  for (ValueId operand : node.operands)
    if (places_.is_on(operand, stage_) || (stage_ == 0 && places_.of(operand) == any_run))
      own.push_back(value_[index_of(operand)]);
  const ValueId result = node.results.front(),
                sum = own.empty() ? ValueId::None : b.emit(node.op->name, own, node.attrs);
  value_[index_of(result)] = summed_over_stages(b, sum, graph_.type(result), graph_.value(result).name);
}

void FunctionOnStage::copy_node(Graph& to, Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  b.origin = node.origin;
  b.phase = node.phase;
  if (routes_.is_transfer(node)) return copy_transfer(b, id);
  if (moves_between_runs(node))
    return void(value_[index_of(node.results.front())] = value_[index_of(node.operands.front())]);
  if (places_.is_joint_sum(id)) return copy_joint_sum(b, id);
  llvm::SmallVector<ValueId, 6> operands;
  for (ValueId operand : node.operands)
    operands.push_back(operand == ValueId::None ? operand : value_[index_of(operand)]);
  llvm::SmallVector<Type, 2> types;
  llvm::SmallVector<std::string, 2> names;
  for (ValueId result : node.results) {
    types.push_back(graph_.type(result));
    names.push_back(graph_.value(result).name);
  }
  const NodeId made = to.add_node(*node.op, operands, node.attrs, types, names);
  to.node(made).origin = node.origin;
  to.node(made).phase = node.phase;
  to.node(made).reason = node.reason;
  for (size_t i = 0; i < node.results.size(); ++i) value_[index_of(node.results[i])] = to.node(made).results[i];
}

Graph FunctionOnStage::make(const llvm::StringSet<>& own, llvm::ArrayRef<NodeId> order) {
  Graph stage;
  stage.name = graph_.name;
  stage.origins = graph_.origins;
  for (ValueId input : graph_.inputs) {
    if (!inputs_.count(input)) continue;
    const ValueId made = value_[index_of(input)] = stage.add_input(graph_.value(input).name, graph_.type(input));
    if (llvm::is_contained(graph_.whole_inputs, input)) stage.whole_inputs.push_back(made);
  }
  const std::vector<bool> is_own = values_named(own);
  for (const State& state : graph_.states) {
    if (!is_own[index_of(state.value)]) continue;
    const std::string& name = graph_.value(state.value).name;
    const ValueId made = stage.add_state(name, graph_.type(state.value), state.role, state.init, state.trained);
    State copy = state;
    copy.value = made;
    stage.states.back() = std::move(copy);
    value_[index_of(state.value)] = made;
  }
  Builder b(stage);
  for (NodeId id : order) copy_node(stage, b, id);
  b.origin = OriginId::None;
  b.phase = Phase::Update;
  for (const Output& output : graph_.outputs) {
    const bool everywhere = places_.of(output.value) == any_run;
    stage.outputs.push_back(
        {output.name, everywhere ? value_[index_of(output.value)] : broadcast_of(b, output.value, output.name)});
  }
  for (const Update& update : graph_.updates)
    if (is_own[index_of(update.state)])
      stage.updates.push_back({value_[index_of(update.state)], value_[index_of(update.value)]});
  for (const StateGradient& gradient : graph_.gradients)
    if (is_own[index_of(gradient.state)])
      stage.gradients.push_back({value_[index_of(gradient.state)], value_[index_of(gradient.value)]});
  return stage;
}

}  // namespace plimsoll
