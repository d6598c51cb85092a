#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution of one tap with strides reads some pixels of its image alone. Of few channels, libraries take five
// times as long for it as for a product of these pixels, which are copied here first; what follows a product without
// strides, such as the moments of a batch norm, it then makes besides.

namespace plimsoll {
namespace {

constexpr int64_t most_channels = 64, vector = 8;

bool wants_slice(const Graph& graph, const Node& node) {
  if (node.op->name != "conv" || !node.attrs.get_int("channels_last")) return false;
  const Type &x = graph.type(operand_of(node, "x")), &w = graph.type(operand_of(node, "w"));
  const auto is = [](int64_t number) { return [number](int64_t each) { return each == number; }; };
  const llvm::ArrayRef<int64_t> strides = node.attrs.get_ints("strides");
  return is_16_bit_float(x.dtype) && x.shape.back() <= most_channels && x.shape.back() % vector == 0 &&
         llvm::all_of(llvm::ArrayRef<int64_t>(w.shape).drop_front().drop_back(), is(1)) && !strides.empty() &&
         !llvm::all_of(strides, is(1)) && llvm::all_of(node.attrs.get_ints("pads"), is(0));
}

ValueId sliced(Builder& b, const Node& conv) {
  const ValueId x = operand_of(conv, "x");
  const Shape y = b.graph().type(conv.results[0]).shape;
  const llvm::ArrayRef<int64_t> strides = conv.attrs.get_ints("strides");
  Ints sizes(y.begin(), y.end()), steps{1};
  sizes.back() = b.type(x).shape.back();
  steps.append(strides.begin(), strides.end());
  steps.push_back(1);
  const ValueId pixels = b.emit("slice", {x}, {{"starts", Ints(sizes.size(), 0)}, {"steps", steps}, {"sizes", sizes}});
  Attrs attrs = conv.attrs;
  attrs.set("strides", Ints(strides.size(), 1));
  return b.emit("conv", operands_with(conv, "x", pixels), attrs);
}

Result<bool> run_slice_pixels(Graph& graph, PassContext& context) {
  int64_t count = 0;
  for (NodeId id : graph.order()) {
    const Node conv = graph.node(id);  // a copy
    if (!wants_slice(graph, conv)) continue;
    Builder b = builder_at(graph, id);
    replace_and_rename(graph, conv.results[0], sliced(b, conv));
    ++count;
  }
  if (count > 0) context.count("convolutions", count);
  return count > 0;
}

}  // namespace

constinit const PassInfo pass_slice_pixels{
    .name = "slice-pixels",
    .summary = "copy the pixels that 16-bit convolutions of one tap with strides read, where these have few channels",
    .stage = Stage::Forward,
    .run = run_slice_pixels,
};

}  // namespace plimsoll
