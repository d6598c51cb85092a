#include "passes/rewrite/patterns.h"

#include "ir/fused_body.h"

#include "llvm/ADT/STLExtras.h"

#include <map>

// Batch norms between elementwise ops become the moments of a batch and arithmetic, which is fused with these ops: what
// is normalised is never in memory, and backward makes it again of x. The gradient becomes two sums for each channel
// and arithmetic; the gradient that comes in is computed for both, in their kernels.
//
// It applies to norms without a residual or a ReLU (passes/target/fuse_batch_norms.cpp), of images with channels last,
// whose result only elementwise ops read and whose gradient an elementwise op makes for it alone.
//
// It is right because it is the definition of both ops. The variance is still the op's, which sums no squares of what
// is far from 0.

namespace plimsoll {
namespace {

// Elementwise nodes in front of a gradient that are computed twice, and what they read at most.
constexpr size_t max_copied_nodes = 8;

bool is_elementwise(const Graph& graph, NodeId id) {
  return id != NodeId::None &&
         fits_fused_body(*graph.node(id).op, operand_types(graph, graph.node(id)), result_types(graph, graph.node(id)));
}

class Splitter {
 public:
  explicit Splitter(Graph& graph) : graph_(graph) {}

  bool split(NodeId id) {
    const Node& norm = graph_.node(id);
    if (norm.attrs.get_int("channels_last") == 0 || norm.attrs.get_string("activation", "none") != "none" ||
        operand_of(norm, "residual") != ValueId::None)
      return false;
    const NodeId grad = gradient_of(norm);
    if (grad == NodeId::None || !only_elementwise_reads(norm.results[0], grad)) return false;
    const ValueId dy = operand_of(graph_.node(grad), "dy");
    if (!is_elementwise(graph_, graph_.value(dy).producer) || !has_one_reader(graph_, dy)) return false;
    split_norm(id);
    split_gradient(grad);
    return true;
  }

 private:
  // What the arithmetic of a norm reads.
  struct Parts {
    ValueId x, scale, mean, var;
    double eps;
  };

  NodeId gradient_of(const Node& norm) const {
    NodeId found = NodeId::None;
    for (NodeId user : graph_.value(norm.results[1]).users) {
      const Node& node = graph_.node(user);
      if (node.op->name != "batch_norm_grad") continue;
      const bool is_plain = operand_of(node, "bias") == ValueId::None && operand_of(node, "y") == ValueId::None;
      if (!is_plain || operand_of(node, "x") != norm.operands[0]) return NodeId::None;
      found = user;
    }
    return found;
  }

  bool only_elementwise_reads(ValueId y, NodeId grad) const {
    const auto& users = graph_.value(y).users;
    return !users.empty() &&
           llvm::all_of(users, [&](NodeId user) { return user != grad && is_elementwise(graph_, user); });
  }

  static ValueId inverse_deviation(Builder& b, const Parts& p) {
    return b.emit("rsqrt", {b.emit("add", {p.var, b.scalar(p.eps, DType::F32)})});
  }
  static ValueId centered(Builder& b, const Parts& p) { return b.emit("sub", {b.cast(p.x, DType::F32), p.mean}); }
  static ValueId factor(Builder& b, const Parts& p) {
    return b.emit("mul", {inverse_deviation(b, p), b.cast(p.scale, DType::F32)});
  }

  void split_norm(NodeId id) {
    const Node norm = graph_.node(id);
    Builder b = builder_at(graph_, id);
    const ValueId x = norm.operands[0], moments = b.emit("batch_moments", {x}, {{"channels_last", 1}});
    const int64_t channels = b.type(moments).shape[1];
    const auto both = b.emit_all("merge_moments", {b.reshape(moments, {1, 2, channels})});
    const Parts parts{x, operand_of(norm, "scale"), both[0], both[1], norm.attrs.get_float("eps")};
    const ValueId scaled = b.emit("mul", {centered(b, parts), factor(b, parts)});
    const ValueId y = b.cast(b.emit("add", {scaled, b.cast(operand_of(norm, "bias"), DType::F32)}), b.type(x).dtype);
    replace(id, {y, both[0], both[1]});
  }

  // dx = factor * (dy - avg(dy) - xhat * avg(dy * xhat)).
  void split_gradient(NodeId id) {
    const Node grad = graph_.node(id);
    Builder b = builder_at(graph_, id);
    const ValueId x = operand_of(grad, "x"), scale = operand_of(grad, "scale"), dy = operand_of(grad, "dy");
    const Parts parts{x, scale, operand_of(grad, "mean"), operand_of(grad, "var"), grad.attrs.get_float("eps")};
    const Type type = b.type(x), parameter = b.type(scale);
    llvm::SmallVector<int64_t, 4> axes;
    for (int64_t d = 0; d + 1 < type.rank(); ++d) axes.push_back(d);
    const ValueId dy_again = copied(b, dy);
    const auto normalised = [&] { return b.emit("mul", {centered(b, parts), inverse_deviation(b, parts)}); };

    const ValueId wide = b.cast(dy, DType::F32), xhat = normalised();
    const ValueId sum = b.sum(wide, axes, true), product_sum = b.sum(b.emit("mul", {wide, xhat}), axes, true);
    const ValueId share =
        b.scalar(static_cast<double>(type.shape.back()) / static_cast<double>(type.elements()), DType::F32);
    const ValueId average = b.emit("mul", {sum, share}), product_average = b.emit("mul", {product_sum, share});
    const auto as_parameter = [&](ValueId total) { return b.reshape(b.cast(total, parameter.dtype), parameter.shape); };

    const ValueId xhat_again = normalised();
    const ValueId away = b.emit("sub", {b.cast(dy_again, DType::F32), average});
    const ValueId bent = b.emit("sub", {away, b.emit("mul", {xhat_again, product_average})});
    const ValueId dx = b.cast(b.emit("mul", {bent, factor(b, parts)}), type.dtype);
    replace(id, {dx, as_parameter(product_sum), as_parameter(sum)});
  }

  // The value computed once more, by copies of the elementwise nodes of backward that nothing else reads.
  ValueId copied(Builder& b, ValueId value) {
    size_t left = max_copied_nodes;
    return copied(b, value, left);
  }
  ValueId copied(Builder& b, ValueId value, size_t& left) {
    const NodeId id = graph_.value(value).producer;
    if (!is_elementwise(graph_, id) || !has_one_reader(graph_, value) || left == 0) return value;
    const Node node = graph_.node(id);
    if (node.phase != Phase::Backward || node.op->name == "dropout") return value;
    --left;
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(copied(b, operand, left));
    return b.emit(node.op->name, operands, node.attrs);
  }

  void replace(NodeId id, llvm::ArrayRef<ValueId> made) {
    const llvm::SmallVector<ValueId, 4> old(graph_.node(id).results.begin(), graph_.node(id).results.end());
    for (size_t r = 0; r < old.size(); ++r) replace_and_rename(graph_, old[r], made[r]);
    graph_.erase_node(id);
  }

  Graph& graph_;
};

Result<bool> run(Graph& graph, PassContext& context) {
  Splitter splitter(graph);
  return apply_patterns(graph, context,
                        {{"batch_norm", "norms", [&](Graph&, NodeId id) { return splitter.split(id); }}});
}

}  // namespace

constinit const PassInfo pass_split_batch_norms{
    .name = "split-batch-norms",
    .summary = "make moments and arithmetic of batch norms between elementwise ops, for fuse-elementwise to fuse",
    .run = run,
};

}  // namespace plimsoll
