#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution of one tap with strides reads some pixels of its image alone. Of few channels, libraries take five
// times as long for it as for a product of these pixels, which are copied here first; what follows a product without
// strides, such as the moments of a batch norm, it then makes besides.
//
// A convolution that cuts a volume into patches, such as the first layer of a video transformer, is a product of rows:
// each patch is copied to one. Libraries take 30 to 40 times as long as memory does (cuDNN 9.19 for patches of 2 x 16 x
// 16 pixels of 3 channels, 1478 and 2120 us). Patches of images are the kernels' that turn space to depth.

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

bool cuts_volume(const Graph& graph, const Node& node) {
  constexpr int64_t rank = 5;
  if (node.op->name != "conv" || !node.attrs.get_int("channels_last") || node.attrs.get_int("groups", 1) != 1)
    return false;
  const Type &x = graph.type(operand_of(node, "x")), &w = graph.type(operand_of(node, "w"));
  if (x.rank() != rank || !is_16_bit_float(x.dtype)) return false;
  const llvm::ArrayRef<int64_t> strides = node.attrs.get_ints("strides"),
                                taps = llvm::ArrayRef<int64_t>(w.shape).drop_front().drop_back();
  const auto is = [](int64_t number) { return [number](int64_t each) { return each == number; }; };
  if (strides != taps || llvm::all_of(taps, is(1)) || !llvm::all_of(node.attrs.get_ints("pads"), is(0)) ||
      !llvm::all_of(node.attrs.get_ints("dilations"), is(1)))
    return false;
  for (size_t d = 0; d < taps.size(); ++d)
    if (x.shape[d + 1] % taps[d] != 0) return false;
  return true;
}

ValueId product_of_patches(Builder& b, const Node& conv) {
  const ValueId x = operand_of(conv, "x"), w = operand_of(conv, "w");
  const Shape whole = b.type(x).shape, weight = b.type(w).shape;
  Shape cut{whole[0]}, rows{whole[0]};
  Ints perm{0}, inside;
  for (size_t d = 1; d + 1 < whole.size(); ++d) {
    perm.push_back(static_cast<int64_t>(cut.size()));
    inside.push_back(static_cast<int64_t>(cut.size()) + 1);
    cut.append({whole[d] / weight[d], weight[d]});
    rows.push_back(whole[d] / weight[d]);
  }
  perm.append(inside.begin(), inside.end());
  perm.push_back(static_cast<int64_t>(cut.size()));
  cut.push_back(whole.back());
  const int64_t columns = b.type(w).elements() / weight[0];
  rows.push_back(columns);
  const ValueId patches = b.reshape(b.transpose(b.reshape(x, cut), perm), rows);
  llvm::SmallVector<ValueId, 3> operands{patches, b.reshape(w, {weight[0], columns})};
  if (const ValueId bias = operand_of(conv, "bias"); bias != ValueId::None) operands.push_back(bias);
  return b.emit("linear", operands, {{"transpose_w", int64_t{1}}});
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
    const bool is_patched = cuts_volume(graph, conv);
    if (!is_patched && !wants_slice(graph, conv)) continue;
    Builder b = builder_at(graph, id);
    replace_and_rename(graph, conv.results[0], is_patched ? product_of_patches(b, conv) : sliced(b, conv));
    ++count;
  }
  if (count > 0) context.count("convolutions", count);
  return count > 0;
}

}  // namespace

constinit const PassInfo pass_slice_pixels{
    .name = "slice-pixels",
    .summary =
        "copy the pixels that 16-bit convolutions of one tap with strides read, where these have few channels, and the "
        "patches that others cut volumes into, which products read",
    .stage = Stage::Forward,
    .run = run_slice_pixels,
};

}  // namespace plimsoll
