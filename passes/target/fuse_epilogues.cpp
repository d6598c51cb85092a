#include "passes/rewrite/patterns.h"
#include "passes/target/moment_epilogues.h"

// A product can make more in its epilogue, while its operands and results are on the chip:
// - the gradient of a gelu: linear and gelu_grad become linear_gelu_grad. Libraries know the tanh form alone; `exact`
//   says whether there is a kernel for the other one, which takes rows of 16-bit elements from 16-byte borders on;
// - the gradient of a linear layer's bias: the sum of dy over all rows becomes the second result of linear_dw;
// - with `left`, products that are summed over their batch, as gradients of a weight at the left of many matrices are,
//   become matmul_sum, and the gradient of a bias behind that weight, which is the sum of rows, its second result;
// - with `moments`, the moments of a batch norm behind a convolution of pixels, and the sums that the norm's gradient
//   needs of the gradient that such a convolution gives it (moment_epilogues.cpp).
//
// Forward keeps its gelu apart. In the epilogue its operand and its result would come from one matmul, and
// rematerialising either would cost that matmul. Plans without remats join the two (join_gelus.cpp).

namespace plimsoll {
namespace {

class Fuser {
 public:
  Fuser(Graph& graph, bool exact) : graph_(graph), order_(graph), exact_(exact) {}

  bool try_gelu(NodeId id) {
    const Node& gelu = graph_.node(id);
    const ValueId dy = operand_of(gelu, "dy");
    const Node* linear = producer_of(graph_, dy, "linear");
    if (!linear || linear->operands.size() != 2 || !has_one_reader(graph_, dy)) return false;
    if (gelu.attrs.get_string("approximate", "none") != "tanh" && !(exact_ && has_whole_words(*linear))) return false;
    Attrs attrs = gelu.attrs;
    if (linear->attrs.has("transpose_w")) attrs.set("transpose_w", linear->attrs.get_int("transpose_w"));
    Builder b = builder_at(graph_, id);
    const ValueId dx =
        b.emit("linear_gelu_grad", {operand_of(*linear, "x"), operand_of(*linear, "w"), operand_of(gelu, "x")},
               std::move(attrs));
    order_.add(dx, id);
    replace_and_rename(graph_, gelu.results[0], dx);
    return true;
  }

  // reduce_sum(matmul(a, b^T)) over all dimensions of the batch
  bool try_batch(NodeId id) {
    const Node sum = graph_.node(id);
    const ValueId products = sum.operands[0];
    const Node* matmul = producer_of(graph_, products, "matmul");
    if (!matmul || !has_one_reader(graph_, products) || matmul->attrs.get_int("transpose_a") != 0 ||
        matmul->attrs.get_int("transpose_b") == 0)
      return false;
    const ValueId a = operand_of(*matmul, "a"), b = operand_of(*matmul, "b");
    if (!is_summed_batch(graph_.type(a), graph_.type(b), sum.attrs.get_ints("axes"))) return false;
    Builder builder = builder_at(graph_, id);
    const ValueId made = builder.emit("matmul_sum", {a, b}, {{"dtype", graph_.type(sum.results[0]).dtype}});
    order_.add(made, id);
    const ValueId shaped = builder.reshape(made, graph_.type(sum.results[0]).shape);
    order_.add(shaped, id);
    replace_and_rename(graph_, sum.results[0], shaped);
    return true;
  }

  bool try_bias(NodeId id) {
    const Node& sum = graph_.node(id);
    const ValueId dy = sum.operands[0];
    const Shape& shape = graph_.type(dy).shape;
    if (shape.empty() || sum.attrs.get_ints("axes").size() + 1 != shape.size()) return false;
    if (llvm::is_contained(sum.attrs.get_ints("axes"), static_cast<int64_t>(shape.size()) - 1)) return false;
    for (NodeId reader : graph_.value(dy).users) {
      const Node& product = graph_.node(reader);
      const bool is_product = product.op->name == "linear_dw" && operand_of(product, "dy") == dy &&
                              product.results.size() == 1 && !product.attrs.has("columns");
      const DType made = is_product ? graph_.type(product.results[0]).dtype : DType::F32;
      const bool fits = is_product && (made == DType::F32 || made == graph_.type(sum.results[0]).dtype);
      if (fits && (order_[reader] < order_[id] || is_ready(product, order_[id])))
        return fuse_bias(id, reader, "bias"), true;
    }
    return false;
  }

  // The sum of the rows of all matrices of a batch.
  bool try_row_sums(NodeId id) {
    const Node& sum = graph_.node(id);
    const ValueId dy = sum.operands[0];
    const auto rank = static_cast<int64_t>(graph_.type(dy).shape.size());
    const llvm::ArrayRef<int64_t> axes = sum.attrs.get_ints("axes");
    if (rank < 3 || static_cast<int64_t>(axes.size()) + 1 != rank || llvm::is_contained(axes, rank - 2)) return false;
    for (NodeId reader : graph_.value(dy).users) {
      const Node& product = graph_.node(reader);
      if (product.op->name != "matmul_sum" || operand_of(product, "a") != dy || product.results.size() != 1) continue;
      const DType made = graph_.type(product.results[0]).dtype;
      const bool fits = made == DType::F32 || made == graph_.type(sum.results[0]).dtype;
      if (fits && (order_[reader] < order_[id] || is_ready(product, order_[id])))
        return fuse_bias(id, reader, "row_sums"), true;
    }
    return false;
  }

 private:
  // Of 16-bit matrices whose rows begin at 16-byte borders, all of whose batch is summed.
  static bool is_summed_batch(const Type& a, const Type& b, llvm::ArrayRef<int64_t> axes) {
    constexpr int64_t word = 8;
    const auto batch_of = [](const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); };
    const auto batch = static_cast<int64_t>(batch_of(a).size());
    return is_16_bit_float(a.dtype) && batch > 0 && a.rank() == b.rank() && batch_of(a) == batch_of(b) &&
           a.shape.back() % word == 0 && static_cast<int64_t>(axes.size()) == batch &&
           llvm::all_of(axes, [&](int64_t axis) { return axis < batch; });
  }

  // Do rows of both operands, and so of the result, consist of whole 16-byte words of 16-bit elements?
  bool has_whole_words(const Node& product) const {
    constexpr int64_t word = 8;
    const Shape& w = graph_.type(operand_of(product, "w")).shape;
    return is_16_bit_float(graph_.type(product.results[0]).dtype) && w[0] % word == 0 && w[1] % word == 0;
  }

  // Are all operands computed before that place?
  bool is_ready(const Node& node, int64_t place) const {
    return llvm::all_of(node.operands,
                        [&](ValueId operand) { return operand == ValueId::None || order_.of(operand) < place; });
  }

  // The fused node stands at the earlier of the two places, before the readers of both. Both results have one type, so
  // a sum of 16 bits beside a gradient of 32 is rounded behind it.
  void fuse_bias(NodeId sum, NodeId product, llvm::StringRef attr) {
    const Node& node = graph_.node(product);
    const ValueId db = graph_.node(sum).results[0];
    const NodeId first = order_[product] < order_[sum] ? product : sum;
    Builder b = builder_at(graph_, first);
    b.origin = node.origin;
    Attrs attrs = node.attrs;
    attrs.set(attr, int64_t{1});
    const llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, node.operands, std::move(attrs));
    order_.add(made[0], first);
    const ValueId rounded = b.cast(made[1], graph_.type(db).dtype);
    order_.add(rounded, first);
    const ValueId shaped = b.reshape(rounded, graph_.type(db).shape);
    order_.add(shaped, first);
    replace_and_rename(graph_, node.results[0], made[0]);
    replace_and_rename(graph_, db, shaped);
    graph_.erase_node(product);
    graph_.erase_node(sum);
  }

  Graph& graph_;
  NodeOrder order_;
  bool exact_;
};

Result<bool> run_fuse_epilogues(Graph& graph, PassContext& context) {
  Fuser fuser(graph, context.number("exact") != 0);
  GradientSumsFuser sums(graph);
  const bool moments = context.number("moments") != 0;
  const auto try_sums = [&](Graph&, NodeId id) { return moments && sums.fuse(id); };
  bool any = false;
  if (context.number("left") != 0) {
    any |= apply_patterns(graph, context,
                          {{"reduce_sum", "batches", [&](Graph&, NodeId id) { return fuser.try_batch(id); }}});
    any |= apply_patterns(graph, context,
                          {{"reduce_sum", "row sums", [&](Graph&, NodeId id) { return fuser.try_row_sums(id); }}});
  }
  any |= apply_patterns(
      graph, context,
      {{"gelu_grad", "gelus", [&](Graph&, NodeId id) { return fuser.try_gelu(id); }},
       {"reduce_sum", "biases", [&](Graph&, NodeId id) { return fuser.try_bias(id); }},
       {"batch_norm", "moments", [&](Graph&, NodeId id) { return moments && fuse_norm_moments(graph, id); }},
       {"batch_norm_grad", "norm gradients", try_sums},
       {"batch_norm_sums", "norm gradients", try_sums},
       {"batch_moments", "moments", [&](Graph&, NodeId id) { return moments && fuse_own_moments(graph, id); }}});
  return any;
}

constexpr PassOption options[] = {
    {"exact", int64_t{0}, "1: kernels make the gradient of the exact gelu of 16 bits, too", 0, 1},
    {"left", int64_t{0}, "1: kernels sum 16-bit products over their batch", 0, 1},
    {"moments", int64_t{0},
     "1: kernels make moments of batch norms and sums of their gradients beside products of pixels of 16 bits", 0, 1}};

}  // namespace

constinit const PassInfo pass_fuse_epilogues{
    .name = "fuse-epilogues",
    .summary = "make gradients of gelu and of biases, and moments of batch norms, in epilogues of products",
    .options = options,
    .run = run_fuse_epilogues,
};

}  // namespace plimsoll
