#include "passes/rewrite/patterns.h"

// A norm of rows becomes the arithmetic it stands for where elementwise ops make the rows, so that fuse-elementwise
// makes one kernel of these and the norm: the rows are written where backward reads them, and not read again.
//
// It is right because the arithmetic is the norm's, in f32 between the ends: sums of the rows, then of the squares of
// what is left. The sums run in another order. Rows that a thread cannot keep in registers stay norms, which read them
// once or twice and not in each of three passes.

namespace plimsoll {
namespace {

constexpr int64_t min_length = 64, max_length = 8192;

bool is_made_by_elements(const Graph& graph, NodeId norm) {
  const ValueId rows = past_reshapes(graph, operand_of(graph.node(norm), "x"));
  const NodeId producer = graph.value(rows).producer;
  if (producer == NodeId::None) return false;
  const Node& node = graph.node(producer);
  // A cast alone is made by the norm as well, or by what makes its operand.
  return node.op->name != "cast" && node.phase == graph.node(norm).phase && fits_fused_body(graph, node);
}

struct Rows {
  Builder& b;
  Attrs over;  // the last dimension, which stays as 1

  ValueId mean(ValueId x) { return b.emit("reduce_mean", {x}, over); }
  ValueId square(ValueId x) { return b.emit("mul", {x, x}); }
  // 1 / sqrt(x + eps)
  ValueId inverse_root(ValueId x, double eps) {
    return b.emit("rsqrt", {b.emit("add", {x, b.scalar(eps, DType::F32)})});
  }
};

bool try_expand(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const Type x = graph.type(operand_of(node, "x"));
  const int64_t axis = node.attrs.get_int("axis");
  const bool is_of_rows = axis == x.rank() - 1 && x.shape.back() >= min_length && x.shape.back() <= max_length;
  if (node.phase != Phase::Forward || !is_of_rows || !is_made_by_elements(graph, id)) return false;
  Builder b = builder_at(graph, id);
  Rows rows{b, {{"axes", Ints{axis}}, {"keep_dims", int64_t{1}}}};
  llvm::SmallVector<ValueId, 3> results;  // as the norm's
  ValueId centred = b.cast(operand_of(node, "x"), DType::F32);
  const bool has_mean = node.op->name == "layer_norm";
  if (has_mean) {
    results.push_back(rows.mean(centred));
    centred = b.emit("sub", {centred, results[0]});
  }
  results.push_back(rows.inverse_root(rows.mean(rows.square(centred)), node.attrs.get_float("eps")));
  ValueId y = b.emit("mul", {centred, results.back()});
  const auto apply = [&](llvm::StringRef op, llvm::StringRef operand) {
    const ValueId of_columns = operand_of(node, operand);
    if (of_columns != ValueId::None) y = b.emit(op, {y, b.cast(of_columns, DType::F32)});
  };
  apply("mul", "scale");
  if (has_mean) apply("add", "bias");
  results.insert(results.begin(), b.cast(y, x.dtype));
  for (size_t i = 0; i < results.size(); ++i) replace_and_rename(graph, node.results[i], results[i]);
  graph.erase_node(id);
  return true;
}

Result<bool> run_expand_norms(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"layer_norm", "layer norms", try_expand}, {"rms_norm", "rms norms", try_expand}});
}

}  // namespace

constinit const PassInfo pass_expand_norms{
    .name = "expand-norms",
    .summary = "write norms of rows that elementwise ops make as arithmetic, for fuse-elementwise to join with these",
    .run = run_expand_norms,
};

}  // namespace plimsoll
