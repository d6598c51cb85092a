#include "passes/target/moment_epilogues.h"

#include "ir/ops/conv/conv.h"

// A convolution that is a product of pixels makes the statistics of the batch norm behind it in its epilogue, so that
// the norm reads its input once instead of twice: conv and batch_norm become conv_moments and batch_norm_given. The
// gradient of such a convolution's input makes the two sums that the gradient of the norm before it needs: conv_dx and
// batch_norm_grad become conv_dx_sums and batch_norm_dx. Where several ranks merge statistics and add sums,
// batch_moments and batch_norm_sums are taken over.
//
// It stands behind differentiation: gradients read the same statistics, wherever these are made. Of 16-bit images with
// channels last whose pixels are whole 16-byte words; others have no kernel that hides the sums.
//
// It is right because the sums are of the same rounded elements. Remats get no dearer: what is normalised is made again
// from statistics that backward keeps anyway, and a convolution that runs again makes few bytes more.

namespace plimsoll {
namespace {

// Is it a product of pixels of whole 16-byte words of 16 bits, and what it gives so, too?
bool has_kernel(const Graph& graph, const Node& convolution) {
  constexpr int64_t word = 8;
  const Type &from = graph.type(convolution.operands[0]), &to = graph.type(convolution.results[0]);
  return is_16_bit_float(from.dtype) && convolution.attrs.get_int("channels_last", 0) != 0 &&
         is_product_of_pixels(convolution.attrs, graph.type(operand_of(convolution, "w")).shape) &&
         from.shape.back() % word == 0 && to.shape.back() % word == 0;
}

// The mean and the variance of an image, made with it; none where its maker cannot.
std::optional<std::pair<ValueId, ValueId>> moments_made_with(Graph& graph, ValueId image) {
  if (const Node* maker = producer_of(graph, image, "conv_moments"))
    return std::pair(maker->results[1], maker->results[2]);
  const Node* conv = producer_of(graph, image, "conv");
  if (!conv || operand_of(*conv, "bias") != ValueId::None || !has_kernel(graph, *conv)) return std::nullopt;
  const NodeId old = graph.value(image).producer;
  const llvm::SmallVector<ValueId, 4> made =
      builder_at(graph, old).emit_all("conv_moments", conv->operands, conv->attrs);
  replace_and_rename(graph, image, made[0]);
  graph.erase_node(old);
  return std::pair(made[1], made[2]);
}

}  // namespace

bool fuse_norm_moments(Graph& graph, NodeId id) {
  const auto moments = moments_made_with(graph, operand_of(graph.node(id), "x"));
  if (!moments) return false;
  const Node norm = graph.node(id);
  const auto& [mean, var] = *moments;
  const ValueId y = builder_at(graph, id).emit("batch_norm_given",
                                               {operand_of(norm, "x"), operand_of(norm, "scale"),
                                                operand_of(norm, "bias"), mean, var, operand_of(norm, "residual")},
                                               norm.attrs);
  replace_and_rename(graph, norm.results[0], y);
  replace_and_rename(graph, norm.results[1], mean);
  replace_and_rename(graph, norm.results[2], var);
  graph.erase_node(id);
  return true;
}

bool fuse_own_moments(Graph& graph, NodeId id) {
  const auto moments = moments_made_with(graph, operand_of(graph.node(id), "x"));
  if (!moments) return false;
  const ValueId old = graph.node(id).results[0];
  const Shape row{1, graph.type(moments->first).shape[0]};
  Builder b = builder_at(graph, id);
  const ValueId both =
      b.emit("concat", {b.reshape(moments->first, row), b.reshape(moments->second, row)}, {{"axis", int64_t{0}}});
  replace_and_rename(graph, old, both);
  graph.erase_node(id);
  return true;
}

// Behind a residual only what goes through is kept of dx, so that nothing else may read it; otherwise others read what
// the fused op gives, and must stand behind the gradient.
llvm::StringRef GradientSumsFuser::operand_to_fuse(const Node& gradient) const {
  if (gradient.attrs.get_string("activation", "relu") != "relu") return {};
  const bool by_output = operand_of(gradient, "y") != ValueId::None;
  const int64_t place = order_[graph_.value(gradient.results[0]).producer];
  for (llvm::StringRef name : {"dy", "more_dy"}) {
    const ValueId dx = operand_of(gradient, name);
    const Node* product = producer_of(graph_, dx, "conv_dx");
    if (!product || !has_kernel(graph_, *product) || leaves_graph(graph_, dx)) continue;
    const bool is_free =
        by_output ? has_one_reader(graph_, dx)
                  : llvm::all_of(graph_.value(dx).users, [&](NodeId reader) { return order_[reader] >= place; });
    if (is_free) return name;
  }
  return {};
}

bool GradientSumsFuser::fuse(NodeId id) {
  const Node gradient = graph_.node(id);
  const llvm::StringRef name = operand_to_fuse(gradient);
  if (name.empty()) return false;
  const ValueId dx = operand_of(gradient, name), other = operand_of(gradient, name == "dy" ? "more_dy" : "dy");
  const Node product = *producer_of(graph_, dx, "conv_dx");
  const ValueId x = operand_of(gradient, "x"), scale = operand_of(gradient, "scale"),
                mean = operand_of(gradient, "mean"), var = operand_of(gradient, "var"),
                bias = operand_of(gradient, "bias"), y = operand_of(gradient, "y");
  Attrs attrs = product.attrs;
  attrs.set("eps", gradient.attrs.get_float("eps"));
  Builder b = builder_at(graph_, id);
  const llvm::SmallVector<ValueId, 4> made = b.emit_all("conv_dx_sums",
                                                        {product.operands[0], product.operands[1], x, scale, mean, var,
                                                         bias, y, y == ValueId::None ? ValueId::None : other},
                                                        std::move(attrs));
  order_.add(made[0], id);
  const ValueId dz = made[0], sums = made[1];
  const bool is_whole = gradient.op->name == "batch_norm_grad";
  replace_and_rename(graph_, gradient.results[1], made[2]);
  replace_and_rename(graph_, gradient.results[2], made[3]);
  if (gradient.results.size() > 3) replace_and_rename(graph_, gradient.results[3], dz);
  if (is_whole) {
    const ValueId norm_dx = b.emit("batch_norm_dx", {x, dz, scale, mean, var, sums, bias}, gradient.attrs);
    order_.add(norm_dx, id);
    replace_and_rename(graph_, gradient.results[0], norm_dx);
  } else {
    replace_and_rename(graph_, gradient.results[0], sums);
  }
  graph_.erase_node(id);
  if (y == ValueId::None && !graph_.value(dx).users.empty()) replace_and_rename(graph_, dx, dz);
  return true;
}

}  // namespace plimsoll
