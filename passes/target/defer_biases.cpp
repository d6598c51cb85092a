#include "passes/rewrite/patterns.h"

// The bias of a convolution is added by the elementwise op that reads the result, where that op alone does: the two
// become one op of fuse-elementwise, which reads the result anyway. Kernels that convolve add a bias in a launch of its
// own, which reads and writes the whole result.

namespace plimsoll {
namespace {

bool try_convolution(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const ValueId bias = operand_of(node, "bias"), y = node.results[0];
  if (bias == ValueId::None || !has_one_reader(graph, y)) return false;
  const Node& reader = graph.node(graph.value(y).users.front());
  const Type type = graph.type(y);
  if (reader.phase != node.phase || reader.results.size() != 1 || !fits_fused_body(graph, reader) ||
      graph.type(reader.results[0]).shape != type.shape || graph.type(bias).dtype != type.dtype)
    return false;
  Builder b = builder_at(graph, id);
  const ValueId made =
      b.emit(node.op->name, {node.operands[0], node.operands[1]}, node.attrs, graph.value(y).name + ".unbiased");
  Shape of_channels(type.rank(), 1);
  of_channels[node.attrs.get_int("channels_last") ? type.rank() - 1 : 1] = graph.type(bias).elements();
  replace_and_rename(graph, y, b.emit("add", {made, b.reshape(bias, of_channels)}));
  graph.erase_node(id);
  return true;
}

Result<bool> run_defer_biases(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"conv", "biases", try_convolution}, {"conv_transpose", "biases", try_convolution}});
}

}  // namespace

constinit const PassInfo pass_defer_biases{
    .name = "defer-biases",
    .summary = "let the elementwise op behind a convolution add its bias",
    .run = run_defer_biases,
};

}  // namespace plimsoll
