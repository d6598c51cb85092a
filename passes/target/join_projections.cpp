#include "passes/rewrite/packed_heads.h"
#include "passes/rewrite/patterns.h"

// Queries, keys and values that are products of one operand become one product, which attention reads as it lies. Its
// columns fill more tiles than those of each part; in backward the gradient of the operand is one product, where it was
// a sum of three, and the gradients of the weights are one product and a split.
//
// It is right because each column of a product has its own column of the weight. Weights are joined where they are
// casts: the joined weight takes the place of three copies that every step makes. Heads have one size, nothing else
// reads the parts, and what lies between a product and attention moves no column.

namespace plimsoll {
namespace {

constexpr size_t parts = 3;

// The linear layer whose rows the operand has, perhaps as rows of fewer dimensions; None where it is read elsewhere,
// has an addend or 8-bit operands, or a weight that is no cast of a parameter.
NodeId projection_behind(const Graph& graph, ValueId operand) {
  if (operand == ValueId::None || !has_one_reader(graph, operand)) return NodeId::None;
  const ValueId rows = past_reshapes(graph, operand);
  const Node* linear = producer_of(graph, rows, "linear");
  if (!linear || !has_one_reader(graph, rows) || operand_of(*linear, "addend") != ValueId::None ||
      graph.type(rows).shape.back() != graph.type(operand).shape.back())
    return NodeId::None;
  for (const auto& [name, value] : linear->attrs.entries())
    if (name != "transpose_w") return NodeId::None;
  const ValueId parameter = value_below(graph, operand_of(*linear, "w"), "cast");
  const bool is_parameter = parameter != ValueId::None && graph.value(parameter).producer == NodeId::None;
  return is_parameter ? graph.value(rows).producer : NodeId::None;
}

bool agree(const Graph& graph, const Node& one, const Node& other) {
  const ValueId w = operand_of(one, "w"), other_w = operand_of(other, "w");
  return operand_of(one, "x") == operand_of(other, "x") && graph.type(w).dtype == graph.type(other_w).dtype &&
         graph.type(one.results[0]).dtype == graph.type(other.results[0]).dtype &&
         one.attrs.get_int("transpose_w") == other.attrs.get_int("transpose_w");
}

// All biases side by side, of zeros where a layer has none; None where no layer has one.
ValueId join_biases(Graph& graph, Builder& b, llvm::ArrayRef<NodeId> layers) {
  DType dtype = DType::F32;
  bool has_bias = false;
  for (NodeId id : layers)
    if (const ValueId bias = operand_of(graph.node(id), "bias"); bias != ValueId::None) {
      dtype = graph.type(bias).dtype;
      has_bias = true;
    }
  if (!has_bias) return ValueId::None;
  llvm::SmallVector<ValueId, parts> biases;
  for (NodeId id : layers) {
    ValueId bias = operand_of(graph.node(id), "bias");
    if (bias == ValueId::None)
      bias = b.expand(b.scalar(0, dtype), {graph.type(graph.node(id).results[0]).shape.back()});
    biases.push_back(bias);
  }
  return b.emit("concat", biases, {{"axis", 0}});
}

bool try_join(Graph& graph, NodeId attention) {
  const Node& node = graph.node(attention);
  if (node.attrs.get_int("packed") != 0) return false;
  llvm::SmallVector<NodeId, parts> layers;
  llvm::SmallVector<ValueId, parts> weights;
  for (size_t i = 0; i < parts; ++i) {
    const NodeId id = projection_behind(graph, node.operands[i]);
    if (id == NodeId::None || (i > 0 && !agree(graph, graph.node(layers[0]), graph.node(id)))) return false;
    layers.push_back(id);
    weights.push_back(operand_of(graph.node(id), "w"));
  }
  if (!has_heads_of_one_size(graph, node)) return false;

  const Node first = graph.node(layers[0]);
  const int64_t along = first.attrs.get_int("transpose_w") != 0 ? 0 : 1;
  Builder b = builder_at(graph, attention);
  b.origin = first.origin;
  llvm::SmallVector<ValueId, 3> operands{operand_of(first, "x"), b.emit("concat", weights, {{"axis", along}})};
  if (const ValueId bias = join_biases(graph, b, layers); bias != ValueId::None) operands.push_back(bias);
  const std::string name = graph.value(first.results[0]).name;
  const ValueId joined = b.emit("linear", operands, first.attrs, name + ".joined");
  read_packed(b, attention, as_rows_of_q(b, attention, joined, b.type(joined).shape.back()));
  return true;
}

Result<bool> run_join_projections(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"attention", "joined", try_join}});
}

}  // namespace

constinit const PassInfo pass_join_projections{
    .name = "join-projections",
    .summary = "make queries, keys and values of one operand as one product",
    .stage = Stage::Forward,
    .keeps_result = true,
    .run = run_join_projections,
};

}  // namespace plimsoll
