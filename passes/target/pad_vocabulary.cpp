#include "passes/rewrite/patterns.h"

// The last layer of a language model has as many columns as there are tokens, often an odd number, while matrix units
// want aligned rows: GPT-2's 50257 columns take three times as long as 50304. The weight is padded with zero columns,
// and cross_entropy is told how many classes there are. Nothing else may read the logits.

namespace plimsoll {
namespace {

// The linear layer that makes logits [N, C], looked at through reshapes that keep C last; None when something else
// reads a value on the way.
NodeId find_linear(const Graph& graph, ValueId logits) {
  const int64_t classes = graph.type(logits).shape.back();
  for (ValueId value = logits; has_one_reader(graph, value) && graph.type(value).shape.back() == classes;) {
    NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) break;
    const Node& node = graph.node(producer);
    if (node.op->name == "linear") return producer;
    if (node.op->name != "reshape") break;
    value = node.operands[0];
  }
  return NodeId::None;
}

ValueId padded(Builder& b, ValueId value, size_t axis, int64_t more) {
  Ints before(b.type(value).shape.size(), 0), after = before;
  after[axis] = more;
  return b.emit("pad", {value}, {{"before", before}, {"after", after}}, b.graph().value(value).name + ".padded");
}

bool try_pad(Graph& graph, NodeId id, int64_t multiple, PassContext& context) {
  const Node& loss = graph.node(id);
  const Type logits = graph.type(operand_of(loss, "logits"));
  if (logits.rank() != 2 || loss.attrs.has("classes")) return false;
  const int64_t classes = logits.shape[1], stored = (classes + multiple - 1) / multiple * multiple;
  // Rows of a multiple of 16 bytes are aligned enough, and small layers do not matter.
  if (classes < 8 * multiple || classes * dtype_bytes(logits.dtype) % 16 == 0) return false;
  const NodeId linear = find_linear(graph, operand_of(loss, "logits"));
  if (linear == NodeId::None) return false;

  Builder b = builder_at(graph, linear);
  const Node& layer = graph.node(linear);
  const ValueId w = padded(b, operand_of(layer, "w"), layer.attrs.get_int("transpose_w") ? 0 : 1, stored - classes);
  llvm::SmallVector<ValueId, 4> operands = operands_with(layer, "w", w);
  if (const ValueId bias = operand_of(layer, "bias"); bias != ValueId::None)
    operands[layer.op->operand("bias")] = padded(b, bias, 0, stored - classes);
  const std::string name = graph.value(layer.results[0]).name;
  ValueId wide = b.emit("linear", operands, layer.attrs, name + ".padded");
  Builder at_loss = builder_at(graph, id);
  graph.set_operand(id, 0, at_loss.reshape(wide, {logits.shape[0], stored}));
  graph.node(id).attrs.set("classes", classes);
  context.decide(name, "padded to " + std::to_string(stored) + " columns",
                 "rows of " + std::to_string(classes) + " begin at odd addresses, which slows matrix products");
  return true;
}

Result<bool> run(Graph& graph, PassContext& context) {
  const auto try_here = [&](Graph& g, NodeId id) { return try_pad(g, id, context.number("multiple"), context); };
  return apply_patterns(graph, context, {{"cross_entropy", "padded", try_here}});
}

constexpr PassOption pass_options[] = {{"multiple", 64, "columns are padded to a multiple of this many", 1}};

}  // namespace

constinit const PassInfo pass_pad_vocabulary{
    .name = "pad-vocabulary",
    .summary = "pad the last layer with columns of zeros where its number of classes misaligns rows",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run,
};

}  // namespace plimsoll
