#include "passes/rewrite/match.h"

#include "ir/fused_body.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace plimsoll {

const Node* producer_of(const Graph& graph, ValueId value, llvm::StringRef op) {
  if (value == ValueId::None) return nullptr;
  NodeId producer = graph.value(value).producer;
  if (producer == NodeId::None || graph.node(producer).op->name != op) return nullptr;
  return &graph.node(producer);
}

ValueId value_below(const Graph& graph, ValueId value, llvm::StringRef op) {
  const Node* node = producer_of(graph, value, op);
  return node ? node->operands[0] : ValueId::None;
}

bool is_square_of(const Graph& graph, ValueId value, ValueId x) {
  if (const Node* pow = producer_of(graph, value, "pow"))
    return operand_of(*pow, "a") == x && is_splat(graph, operand_of(*pow, "b"), 2);
  const Node* mul = producer_of(graph, value, "mul");
  return mul && operand_of(*mul, "a") == x && operand_of(*mul, "b") == x;
}

bool leaves_graph(const Graph& graph, ValueId value) {
  return llvm::any_of(graph.outputs, [&](const Output& output) { return output.value == value; }) ||
         llvm::any_of(graph.updates, [&](const Update& update) { return update.value == value; });
}

bool has_one_reader(const Graph& graph, ValueId value) {
  return graph.value(value).users.size() == 1 && !leaves_graph(graph, value);
}

const Tensor* constant_behind(const Graph& graph, ValueId value) {
  while (value != ValueId::None) {
    NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return nullptr;
    const Node& node = graph.node(producer);
    if (node.op->name == "constant") return node.attrs.get_tensor("value").get();
    if (node.op->name != "expand" && node.op->name != "reshape") return nullptr;
    value = node.operands[0];
  }
  return nullptr;
}

// Gives the number that somebody wrote: 1e-6 stored as f32 reads 9.999999974752427e-07 as a double.
static double shortest_decimal(float stored) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text - 1, stored);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

std::optional<double> splat_value(const Graph& graph, ValueId value) {
  const Tensor* tensor = constant_behind(graph, value);
  if (!tensor || tensor->type().elements() == 0) return std::nullopt;
  double first = tensor->get(0);
  for (int64_t i = 1; i < tensor->type().elements(); ++i)
    if (tensor->get(i) != first) return std::nullopt;
  return tensor->type().dtype == DType::F32 ? shortest_decimal(static_cast<float>(first)) : first;
}

bool is_splat(const Graph& graph, ValueId value, double number, double relative_tolerance) {
  std::optional<double> splat = splat_value(graph, value);
  return splat && std::fabs(*splat - number) <= relative_tolerance * std::fabs(number);
}

ValueId other_operand(const Node& node, ValueId one) { return node.operands[node.operands[0] == one ? 1 : 0]; }

std::optional<WithNumber> with_number(const Graph& graph, const Node& node) {
  if (node.operands.size() != 2) return std::nullopt;
  if (std::optional<double> number = splat_value(graph, node.operands[1])) return WithNumber{node.operands[0], *number};
  if (std::optional<double> number = splat_value(graph, node.operands[0])) return WithNumber{node.operands[1], *number};
  return std::nullopt;
}

std::optional<Types> try_infer(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Type*> operands) {
  Result<Types> results = infer(OpCall(op, attrs, operands));
  if (results) return std::move(*results);
  llvm::consumeError(results.takeError());
  return std::nullopt;
}

// Bodies draw in the order of memory.
bool fits_fused_body(const Graph& graph, const Node& node) {
  const bool draws_in_other_order = node.op->name == "dropout" && node.attrs.get_int("channels_last") != 0;
  return !draws_in_other_order && fits_fused_body(*node.op, operand_types(graph, node), result_types(graph, node));
}

bool is_elementwise_for_one_reader(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  return producer != NodeId::None && has_one_reader(graph, value) && fits_fused_body(graph, graph.node(producer));
}

llvm::SmallVector<ValueId, 4> operands_with(const Node& node, llvm::StringRef name, ValueId operand) {
  llvm::SmallVector<ValueId, 4> operands = node.operands;
  const size_t at = node.op->operand(name);
  operands.resize(std::max(operands.size(), at + 1), ValueId::None);
  operands[at] = operand;
  return operands;
}

ValueId past_reshapes(const Graph& graph, ValueId value) {
  for (;;) {
    const ValueId below = value_below(graph, value, "reshape");
    if (below == ValueId::None || !has_one_reader(graph, value)) return value;
    value = below;
  }
}

bool makes_scores(const Graph& graph, ValueId value) {
  return llvm::any_of(graph.value(value).users, [&](NodeId user) {
    const Node& node = graph.node(user);
    if (node.op->is_loss_over_classes()) return node.operands[0] == value;
    return node.op->only_moves() &&
           llvm::any_of(node.results, [&](ValueId result) { return makes_scores(graph, result); });
  });
}

Builder builder_at(Graph& graph, NodeId node) {
  Builder b(graph, node);
  b.origin = graph.node(node).origin;
  b.phase = graph.node(node).phase;
  return b;
}

void replace_and_rename(Graph& graph, ValueId old, ValueId now) {
  graph.replace_uses(old, now);
  std::string name = graph.value(old).name;
  graph.rename(old, name + ".replaced");
  graph.rename(now, name);
}

Attrs with_dims_permuted(const Attrs& attrs, llvm::ArrayRef<int64_t> perm) {
  Attrs moved = attrs;
  const auto permuted = [&](auto list) {
    const auto old = list;
    for (size_t i = 0; i < list.size(); ++i)
      list[i] = old[i / perm.size() * perm.size() + static_cast<size_t>(perm[i % perm.size()])];
    return list;
  };
  for (const auto& [name, attr] : attrs.entries()) {
    if (const auto* ints = std::get_if<Ints>(&attr)) moved.set(name, permuted(*ints));
    if (const auto* floats = std::get_if<Floats>(&attr)) moved.set(name, permuted(*floats));
  }
  return moved;
}

std::string model_name(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return node.origin == OriginId::None ? graph.value(node.results[0]).name : graph.origins[index_of(node.origin)].node;
}

NodeOrder::NodeOrder(const Graph& graph) : graph_(graph), places_(graph.node_slots()) {
  int64_t next = 0;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) places_[index_of(id)] = next++;
}

void NodeOrder::add(ValueId value, NodeId node) {
  places_.resize(graph_.node_slots(), -1);
  places_[index_of(graph_.value(value).producer)] = places_[index_of(node)];
}

}  // namespace plimsoll
