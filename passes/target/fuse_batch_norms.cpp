#include "passes/rewrite/patterns.h"

// A batch norm takes over the sum and the ReLU behind it, or a SiLU without a sum, so normalised values are not written
// and read again, and backward masks and sums gradients as it reads them. Behind a residual, the gradient of the norm
// also takes over the sum of the gradients that meet there, if a second reader of the ReLU's result made one.
//
// A sum or ReLU is taken over where nothing else reads its operand and the other summand is computed before the norm.
// Where two norms are summed, as at a downsampling branch, the later one takes the sum.
//
// A group norm takes over a ReLU or SiLU that alone reads its result; backward makes the activation's operand of x
// again.
//
// It is right because the fused op means the same, without the roundings in between.

namespace plimsoll {
namespace {

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), order_(graph) {}

  bool fuse_norm(NodeId id) {
    const Node& norm = graph_.node(id);
    ValueId y = norm.results[0], residual = operand_of(norm, "residual");
    std::string activation = norm.attrs.get_string("activation", "none").str();
    llvm::SmallVector<NodeId, 2> taken;
    while (activation == "none" && has_one_reader(graph_, y)) {
      const NodeId reader = graph_.value(y).users.front();
      const llvm::StringRef name = graph_.node(reader).op->name;
      if (name == "relu" || (name == "silu" && residual == ValueId::None))
        activation = name.str();
      else if (residual == ValueId::None && is_sum_behind(reader, y, id))
        residual = other_operand(graph_.node(reader), y);
      else
        break;
      taken.push_back(reader);
      y = graph_.node(reader).results[0];
    }
    if (taken.empty()) return false;
    Attrs attrs = norm.attrs;
    if (activation != "none") attrs.set("activation", activation);
    replace(id, residual == ValueId::None ? norm.operands : operands_with(norm, "residual", residual), attrs,
            {y, norm.results[1], norm.results[2]});
    for (NodeId node : llvm::reverse(taken)) graph_.erase_node(node);
    graph_.erase_node(id);
    return true;
  }

  bool fuse_activation(NodeId id) {
    const Node& norm = graph_.node(id);
    const ValueId y = norm.results[0];
    if (norm.attrs.get_string("activation", "none") != "none" || !has_one_reader(graph_, y)) return false;
    const NodeId reader = graph_.value(y).users.front();
    const llvm::StringRef name = graph_.node(reader).op->name;
    if (name != "relu" && name != "silu") return false;
    Attrs attrs = norm.attrs;
    attrs.set("activation", name.str());
    replace(id, norm.operands, attrs, {graph_.node(reader).results[0], norm.results[1], norm.results[2]});
    graph_.erase_node(reader);
    graph_.erase_node(id);
    return true;
  }

  bool fuse_gradient(NodeId id) {
    const Node& grad = graph_.node(id);
    const ValueId dy = operand_of(grad, "dy");
    const NodeId sum = graph_.value(dy).producer;
    const bool behind_residual = operand_of(grad, "y") != ValueId::None;
    if (!behind_residual || operand_of(grad, "more_dy") != ValueId::None || !producer_of(graph_, dy, "add") ||
        !has_one_reader(graph_, dy))
      return false;
    const auto [a, b] = std::pair(graph_.node(sum).operands[0], graph_.node(sum).operands[1]);
    if (graph_.type(a) != graph_.type(dy) || graph_.type(b) != graph_.type(dy)) return false;
    llvm::SmallVector<ValueId, 4> operands = operands_with(grad, "more_dy", b);
    operands[grad.op->operand("dy")] = a;
    replace(id, operands, grad.attrs, grad.results);
    graph_.erase_node(id);
    graph_.erase_node(sum);
    return true;
  }

 private:
  // An add of y and a value of its type that stands before the norm.
  bool is_sum_behind(NodeId reader, ValueId y, NodeId norm) const {
    const Node& sum = graph_.node(reader);
    if (sum.op->name != "add") return false;
    const ValueId other = other_operand(sum, y);
    return order_.of(other) < order_[norm] && graph_.type(other) == graph_.type(y);
  }

  // Puts a node of the same op in the place of `id`; its results take over these values' names and uses.
  void replace(NodeId id, llvm::ArrayRef<ValueId> operands, const Attrs& attrs, llvm::ArrayRef<ValueId> old) {
    llvm::SmallVector<ValueId, 4> made = builder_at(graph_, id).emit_all(graph_.node(id).op->name, operands, attrs);
    order_.add(made[0], id);
    for (size_t r = 0; r < made.size(); ++r) replace_and_rename(graph_, old[r], made[r]);
  }

  Graph& graph_;
  NodeOrder order_;
};

Result<bool> run_fuse_batch_norms(Graph& graph, PassContext& context) {
  Fuser fuser(graph);
  return apply_patterns(graph, context,
                        {{"batch_norm", "norms", [&](Graph&, NodeId id) { return fuser.fuse_norm(id); }},
                         {"group_norm", "group norms", [&](Graph&, NodeId id) { return fuser.fuse_activation(id); }},
                         {"batch_norm_grad", "gradients", [&](Graph&, NodeId id) { return fuser.fuse_gradient(id); }},
                         {"batch_norm_sums", "gradients", [&](Graph&, NodeId id) { return fuser.fuse_gradient(id); }}});
}

}  // namespace

constinit const PassInfo pass_fuse_batch_norms{
    .name = "fuse-batch-norms",
    .summary =
        "fuse batch norms with the sum and the ReLU or the SiLU behind them, and gradients with the sum in front; "
        "group norms with a ReLU or SiLU",
    .run = run_fuse_batch_norms,
};

}  // namespace plimsoll
