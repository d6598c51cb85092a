#include "passes/rewrite/patterns.h"

// The last layer of a language model has as many columns as there are tokens, often an odd number, while matrix units
// want aligned rows: GPT-2's 50257 columns take three times as long as 50304. The weight is padded with zero columns,
// and cross_entropy is told how many classes there are. Nothing else may read the logits.

namespace plimsoll {
namespace {

// Where logits come from: the linear layer, and the reshapes and slices behind it, the last one first.
struct Logits {
  NodeId linear = NodeId::None;
  llvm::SmallVector<NodeId, 4> moves;
};

// Looks at logits [N, C] through moves that keep C last and whole. No layer when something else reads a value on the
// way.
Logits find_logits(const Graph& graph, ValueId value) {
  Logits logits;
  const int64_t classes = graph.type(value).shape.back();
  while (has_one_reader(graph, value) && graph.type(value).shape.back() == classes) {
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return {};
    const Node& node = graph.node(producer);
    if (node.op->name == "linear") {
      logits.linear = producer;
      return logits;
    }
    if (node.op->name == "slice" && node.attrs.get_ints("steps").back() != 1) return {};
    if (node.op->name != "slice" && node.op->name != "reshape") return {};
    logits.moves.push_back(producer);
    value = node.operands[0];
  }
  return {};
}

// The same moves of rows that have `stored` columns.
ValueId moved(Graph& graph, const Logits& logits, ValueId wide, int64_t stored) {
  for (NodeId id : llvm::reverse(logits.moves)) {
    const Node& node = graph.node(id);
    const llvm::StringRef sizes = node.op->name == "slice" ? "sizes" : "shape";
    Attrs attrs = node.attrs;
    const llvm::ArrayRef<int64_t> before = attrs.get_ints(sizes);
    Ints now(before.begin(), before.end());
    now.back() = stored;
    attrs.set(sizes, std::move(now));
    wide = builder_at(graph, id).emit(node.op->name, {wide}, std::move(attrs));
  }
  return wide;
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
  const int64_t asked_bytes = context.number("element-bytes");
  const int64_t element_bytes = asked_bytes > 0 ? asked_bytes : dtype_bytes(logits.dtype);
  // Rows of a multiple of 16 bytes are aligned enough, and small layers do not matter.
  if (classes < 8 * multiple || classes * element_bytes % 16 == 0) return false;
  const Logits found = find_logits(graph, operand_of(loss, "logits"));
  const NodeId linear = found.linear;
  if (linear == NodeId::None) return false;

  Builder b = builder_at(graph, linear);
  const Node& layer = graph.node(linear);
  const ValueId w = padded(b, operand_of(layer, "w"), layer.attrs.get_int("transpose_w") ? 0 : 1, stored - classes);
  llvm::SmallVector<ValueId, 4> operands = operands_with(layer, "w", w);
  if (const ValueId bias = operand_of(layer, "bias"); bias != ValueId::None)
    operands[layer.op->operand("bias")] = padded(b, bias, 0, stored - classes);
  const std::string name = graph.value(layer.results[0]).name;
  const ValueId wide = b.emit("linear", operands, layer.attrs, name + ".padded");
  graph.set_operand(id, 0, moved(graph, found, wide, stored));
  graph.node(id).attrs.set("classes", classes);
  context.decide(name, "padded to " + std::to_string(stored) + " columns",
                 "rows of " + std::to_string(classes) + " begin at odd addresses, which slows matrix products");
  return true;
}

Result<bool> run_pad_vocabulary(Graph& graph, PassContext& context) {
  const auto try_here = [&](Graph& g, NodeId id) { return try_pad(g, id, context.number("multiple"), context); };
  return apply_patterns(graph, context, {{"cross_entropy", "padded", try_here}});
}

constexpr PassOption pass_options[] = {
    {"multiple", 64, "columns are padded to a multiple of this many", 1},
    {"element-bytes", 0, "bytes that logits have once casts are inserted; 0: as many as now", 0, 8}};

}  // namespace

constinit const PassInfo pass_pad_vocabulary{
    .name = "pad-vocabulary",
    .summary = "pad the last layer with columns of zeros where its number of classes misaligns rows",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_pad_vocabulary,
};

}  // namespace plimsoll
