#include "passes/rewrite/patterns.h"

// Matmuls with a weight become `linear`, which takes any leading dims and an optional bias. Reshapes and row
// permutations around it then move out of the way (move-transposes). So do convolutions whose window covers the whole
// image: they are one product of samples by all taps of all channels, whose depth kernels for products divide.

namespace plimsoll {
namespace {

// The second operand of a linear layer is a weight or derived from weights alone.
bool is_weight_like(const Graph& graph, ValueId value, int depth = 4) {
  if (const State* state = graph.find_state(value))
    return state->role == StateRole::Parameter || state->role == StateRole::Buffer;
  NodeId producer = graph.value(value).producer;
  if (producer == NodeId::None || depth == 0) return false;
  const Node& node = graph.node(producer);
  return !node.operands.empty() && llvm::all_of(node.operands, [&](ValueId operand) {
    return operand != ValueId::None && is_weight_like(graph, operand, depth - 1);
  });
}

// An einsum's weight may be a batch of one matrix.
bool try_linear(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  ValueId x = operand_of(node, "a"), w = operand_of(node, "b");
  const Shape shape = graph.type(w).shape;
  const int64_t rank = graph.type(w).rank();
  if (rank < 2 || graph.type(x).rank() < rank || node.attrs.get_int("transpose_a") != 0) return false;
  const Shape matrix(shape.end() - 2, shape.end());
  if (element_count(shape) != element_count(matrix)) return false;
  if (!is_weight_like(graph, w) && (rank > 2 || graph.type(x).rank() == 2)) return false;
  bool transposed = node.attrs.get_int("transpose_b") != 0;
  Builder b = builder_at(graph, id);
  ValueId linear = b.emit("linear", {x, b.reshape(w, matrix)}, {{"transpose_w", int64_t{transposed}}});
  replace_and_rename(graph, graph.node(id).results[0], linear);
  return true;
}

// linear(x, transpose(w)) -> linear{transpose_w}(x, w), which needs no transposed weight in memory.
bool try_transposed_weight(Graph& graph, NodeId id) {
  const Node& linear = graph.node(id);
  const ValueId w = value_below(graph, operand_of(linear, "w"), "transpose");
  if (w == ValueId::None) return false;
  graph.set_operand(id, linear.op->operand("w"), w);
  Attrs& attrs = graph.node(id).attrs;
  attrs.set("transpose_w", int64_t{attrs.get_int("transpose_w") == 0});
  return true;
}

// add(linear(x, w), bias[N]) -> linear(x, w, bias) where nothing else reads linear(x, w).
bool try_bias(Graph& graph, NodeId id) {
  const Node& add = graph.node(id);
  for (size_t i = 0; i < 2; ++i) {
    ValueId product = add.operands[i], bias = add.operands[1 - i];
    const Node* linear = producer_of(graph, product, "linear");
    if (!linear || linear->operands.size() > 2 || !has_one_reader(graph, product)) continue;
    const Type& type = graph.type(product);
    const Type& bias_type = graph.type(bias);
    if (bias_type.elements() != type.shape.back() || bias_type.shape.empty() ||
        bias_type.shape.back() != type.shape.back())
      continue;
    if (graph.type(add.results[0]) != type || bias_type.dtype != type.dtype) continue;
    Builder b = builder_at(graph, id);
    ValueId flat = b.reshape(bias, {type.shape.back()});
    ValueId with_bias = b.emit("linear", {operand_of(*linear, "x"), operand_of(*linear, "w"), flat}, linear->attrs);
    replace_and_rename(graph, add.results[0], with_bias);
    return true;
  }
  return false;
}

// Products of many small matrices with a vector each are sums of elementwise products: matrix units would work on one
// column of each tile, and the elementwise op joins others.
bool try_vectors(Graph& graph, NodeId id) {
  constexpr int64_t max_elements = 4096, min_matrices = 256;
  const Node& node = graph.node(id);
  const ValueId a = operand_of(node, "a"), v = operand_of(node, "b");
  const Shape matrix = graph.type(a).shape, vector = graph.type(v).shape, y = graph.type(node.results[0]).shape;
  if (node.attrs.get_int("transpose_a") != 0 || node.attrs.get_int("transpose_b") != 0 || y.back() != 1) return false;
  const int64_t size = matrix[matrix.size() - 2] * matrix.back();
  const bool are_many = size > 0 && size <= max_elements && graph.type(a).elements() / size >= min_matrices;
  if (!are_many || matrix.size() != vector.size() ||
      graph.type(v).elements() * size != graph.type(a).elements() * matrix.back())
    return false;
  const int64_t rank = graph.type(a).rank();
  Shape row = vector;
  std::swap(row[rank - 2], row[rank - 1]);
  Builder b = builder_at(graph, id);
  const ValueId products = b.emit("mul", {a, b.reshape(v, row)});
  replace_and_rename(graph, graph.node(id).results[0], b.sum(products, {rank - 1}, true));
  return true;
}

// conv(x[N, C, taps...], w[M, C, taps...]) -> linear of [N, C * taps] and [M, C * taps], before channels are put last.
bool try_whole_window(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const Shape x = graph.type(operand_of(node, "x")).shape, w = graph.type(operand_of(node, "w")).shape;
  const Shape y = graph.type(node.results[0]).shape;
  const auto all_are = [&](llvm::StringRef list, int64_t value) {
    return !node.attrs.has(list) ||
           llvm::all_of(node.attrs.get_ints(list), [&](int64_t each) { return each == value; });
  };
  if (node.attrs.get_int("channels_last") != 0 || node.attrs.get_int("groups", 1) != 1 || x.empty() ||
      llvm::ArrayRef<int64_t>(x).drop_front() != llvm::ArrayRef<int64_t>(w).drop_front() || !all_are("pads", 0) ||
      !all_are("dilations", 1))
    return false;
  Builder b = builder_at(graph, id);
  llvm::SmallVector<ValueId, 3> operands{
      b.reshape(operand_of(node, "x"), {x[0], element_count(llvm::ArrayRef<int64_t>(x).drop_front())}),
      b.reshape(operand_of(node, "w"), {w[0], element_count(llvm::ArrayRef<int64_t>(w).drop_front())})};
  if (const ValueId bias = operand_of(node, "bias"); bias != ValueId::None) operands.push_back(bias);
  const ValueId product = b.emit("linear", operands, {{"transpose_w", 1}});
  replace_and_rename(graph, node.results[0], b.reshape(product, y));
  return true;
}

Result<bool> run_recover_linear(Graph& graph, PassContext& context) {
  const bool found = apply_patterns(graph, context,
                                    {{"matmul", "linear", try_linear},
                                     {"matmul", "vectors", try_vectors},
                                     {"conv", "whole windows", try_whole_window}});
  return apply_patterns(graph, context,
                        {{"linear", "transposed weights", try_transposed_weight}, {"add", "bias", try_bias}}) ||
         found;
}

}  // namespace

constinit const PassInfo pass_recover_linear{
    .name = "recover-linear",
    .summary =
        "turn matmuls with a weight, and their bias, into linear layers, those of many small matrices with vectors "
        "into sums",
    .run = run_recover_linear,
};

}  // namespace plimsoll
