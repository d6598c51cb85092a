#include "passes/rewrite/patterns.h"
#include "passes/target/fusion_remakes.h"

#include "llvm/ADT/STLExtras.h"

// A norm of rows becomes the arithmetic it stands for where elementwise ops make the rows, so that fuse-elementwise
// makes one kernel of these and the norm: the rows are written where backward reads them, and not read again.
//
// It is right because the arithmetic is the norm's, in f32 between the ends: sums of the rows, then of the squares of
// what is left. The sums run in another order. Rows that a thread cannot keep in registers stay norms, which read them
// once or twice and not in each of three passes.
//
// The gradient of such a norm becomes arithmetic where forward makes the rows of one value that backward reads anyway,
// as a gelu does, and elementwise ops alone read what it gives: one kernel then makes the rows again, the gradient and
// what reads it, another the sums over rows, and the rows are not saved.

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

// Does an elementwise op of forward make the rows of one value that backward reads as well, and does nothing of
// backward but this gradient and elementwise ops read them?
bool is_made_again(const Graph& graph, NodeId gradient) {
  const ValueId rows = operand_of(graph.node(gradient), "x");
  const NodeId producer = graph.value(rows).producer;
  if (producer == NodeId::None || leaves_graph(graph, rows)) return false;
  const Node& node = graph.node(producer);
  if (node.phase != Phase::Forward || node.operands.size() != 1 || !fits_fused_body(graph, node)) return false;
  const Type &made = graph.type(rows), &read = graph.type(node.operands[0]);
  return read.shape == made.shape && read.bytes() <= made.bytes() && is_read_in_backward(graph, node.operands[0]) &&
         llvm::all_of(graph.value(rows).users, [&](NodeId user) {
           const Node& reader = graph.node(user);
           return user == gradient || (!reader.op->is_view() && reader.phase != Phase::Backward) ||
                  fits_fused_body(graph, reader);
         });
}

bool only_elementwise_reads(const Graph& graph, ValueId value) {
  return !leaves_graph(graph, value) &&
         llvm::all_of(graph.value(value).users, [&](NodeId user) { return fits_fused_body(graph, graph.node(user)); });
}

bool is_of_rows(const Type& x, int64_t axis) {
  return axis == x.rank() - 1 && x.shape.back() >= min_length && x.shape.back() <= max_length;
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
  if (node.phase != Phase::Forward || !is_of_rows(x, axis) || !is_made_by_elements(graph, id)) return false;
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

// The gradient of a norm as arithmetic. Its rows and its sums over rows read casts of their own, since they are in
// kernels of their own.
class GradientParts {
 public:
  GradientParts(Graph& graph, NodeId id)
      : graph_(graph), node_(graph.node(id)), b_(builder_at(graph, id)), x_(graph.type(operand_of(node_, "x"))) {}

  // As the norm's gradient has them.
  llvm::SmallVector<ValueId, 3> make() {
    llvm::SmallVector<ValueId, 3> results{of_rows()};
    if (node_.attrs.get_int("has_scale", 0))
      results.push_back(sum_over_rows(b_.emit("mul", {wide_dy(), normalised()})));
    if (node_.attrs.get_int("has_bias", 0)) results.push_back(sum_over_rows(wide_dy()));
    return results;
  }

 private:
  ValueId wide(ValueId value) { return b_.cast(value, DType::F32); }
  ValueId wide_dy() { return wide(operand_of(node_, "dy")); }

  ValueId normalised() {
    ValueId centred = wide(operand_of(node_, "x"));
    if (node_.op->name == "layer_norm_grad") centred = b_.emit("sub", {centred, operand_of(node_, "mean")});
    return b_.emit("mul", {centred, operand_of(node_, "rstd")});
  }

  // rstd * (g - mean(g) - y * mean(g * y)) of y, which is normalised, and of g, the gradient of y; an RMS norm takes no
  // mean off.
  ValueId of_rows() {
    Rows rows{b_, {{"axes", Ints{x_.rank() - 1}}, {"keep_dims", int64_t{1}}}};
    const ValueId y = normalised();
    ValueId g = wide_dy();
    if (const ValueId scale = operand_of(node_, "scale"); scale != ValueId::None) g = b_.emit("mul", {g, wide(scale)});
    const ValueId along_y = b_.emit("mul", {y, rows.mean(b_.emit("mul", {g, y}))});
    if (node_.op->name == "layer_norm_grad") g = b_.emit("sub", {g, rows.mean(g)});
    ValueId dx = b_.emit("mul", {b_.emit("sub", {g, along_y}), operand_of(node_, "rstd")});
    if (const ValueId addend = operand_of(node_, "addend"); addend != ValueId::None)
      dx = b_.emit("add", {dx, wide(addend)});
    return b_.cast(dx, x_.dtype);
  }

  ValueId sum_over_rows(ValueId value) {
    Ints axes;
    for (int64_t axis = 0; axis + 1 < x_.rank(); ++axis) axes.push_back(axis);
    const ValueId sum = b_.emit("reduce_sum", {value}, {{"axes", axes}, {"keep_dims", int64_t{0}}});
    const ValueId scale = operand_of(node_, "scale");
    return b_.cast(sum, scale == ValueId::None ? x_.dtype : b_.type(scale).dtype);
  }

  Graph& graph_;
  const Node node_;
  Builder b_;
  const Type x_;
};

bool try_expand_gradient(Graph& graph, NodeId id) {
  const Node node = graph.node(id);
  const Type& x = graph.type(operand_of(node, "x"));
  if (!is_of_rows(x, node.attrs.get_int("axis")) || x.dtype == DType::F64 || !is_made_again(graph, id) ||
      !only_elementwise_reads(graph, node.results[0]))
    return false;
  const llvm::SmallVector<ValueId, 3> results = GradientParts(graph, id).make();
  for (size_t i = 0; i < results.size(); ++i) replace_and_rename(graph, node.results[i], results[i]);
  graph.erase_node(id);
  return true;
}

Result<bool> run_expand_norms(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"layer_norm", "layer norms", try_expand},
                         {"rms_norm", "rms norms", try_expand},
                         {"layer_norm_grad", "gradients of layer norms", try_expand_gradient},
                         {"rms_norm_grad", "gradients of rms norms", try_expand_gradient}});
}

}  // namespace

constinit const PassInfo pass_expand_norms{
    .name = "expand-norms",
    .summary = "write norms of rows that elementwise ops make as arithmetic, for fuse-elementwise to join with these",
    .run = run_expand_norms,
};

}  // namespace plimsoll
