#include "passes/rewrite/patterns.h"

// A long sum of 16-bit operands whose only reader casts it to f32 rounds to f32 itself, where its record takes {dtype}.
// Weight and bias gradients of a mixed-precision step are thus rounded once and have no 16-bit copy in memory. Views
// between the sum and the cast move behind it.
//
// It is right because the sum is accumulated in at least f32 either way; only the rounding in the middle goes.
//
// A cast to fewer bits comes before the zeros that are padded, so that a last layer whose classes are padded has no
// padded weights in f32. It keeps zero as it is. Before differentiation the gradient would have fewer bits, too.

namespace plimsoll {
namespace {

// The sum that a cast to f32 reads, past reshapes that nothing else reads; None where there is none.
NodeId sum_behind(const Graph& graph, const Node& cast) {
  const ValueId value = past_reshapes(graph, operand_of(cast, "x"));
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None || !has_one_reader(graph, value)) return NodeId::None;
  const Node& sum = graph.node(id);
  const DType narrow = graph.type(value).dtype;
  const bool sums_narrow = !sum.operands.empty() && sum.results.size() == 1 && !sum.attrs.has("dtype") &&
                           is_16_bit_float(narrow) && graph.type(sum.operands[0]).dtype == narrow;
  return sums_narrow ? id : NodeId::None;
}

bool try_fold(Graph& graph, NodeId cast) {
  const ValueId old = graph.node(cast).results[0];
  if (graph.type(old).dtype != DType::F32) return false;
  const NodeId id = sum_behind(graph, graph.node(cast));
  if (id == NodeId::None) return false;
  const Node& sum = graph.node(id);
  Attrs attrs = sum.attrs;
  attrs.set("dtype", DType::F32);
  if (!try_infer(*sum.op, attrs, operand_types(graph, sum))) return false;
  Builder b = builder_at(graph, cast);
  b.origin = sum.origin;
  const Shape shape = graph.type(old).shape;
  replace_and_rename(graph, old, b.reshape(b.emit(sum.op->name, sum.operands, std::move(attrs)), shape));
  return true;
}

bool try_swap_with_pad(Graph& graph, NodeId cast) {
  const ValueId narrow = graph.node(cast).results[0], padded = operand_of(graph.node(cast), "x");
  const NodeId id = graph.value(padded).producer;
  if (id == NodeId::None || !has_one_reader(graph, padded)) return false;
  const Node& pad = graph.node(id);
  if (pad.op->name != "pad" || operand_of(pad, "value") != ValueId::None) return false;
  const DType dtype = graph.type(narrow).dtype;
  if (dtype_bytes(dtype) >= dtype_bytes(graph.type(padded).dtype)) return false;
  Builder b = builder_at(graph, cast);
  b.origin = pad.origin;
  replace_and_rename(graph, narrow, b.emit("pad", {b.cast(operand_of(pad, "x"), dtype)}, pad.attrs));
  return true;
}

Result<bool> run(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"cast", "sums", try_fold}, {"cast", "pads", try_swap_with_pad}});
}

}  // namespace

constinit const PassInfo pass_fold_casts_into_reductions{
    .name = "fold-casts-into-reductions",
    .summary =
        "let sums of 16-bit operands that are cast to f32 round to f32 themselves, and cast to fewer bits before "
        "padding",
    .keeps_result = false,
    .run = run,
};

}  // namespace plimsoll
