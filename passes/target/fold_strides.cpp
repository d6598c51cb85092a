#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// A convolution of a line of few channels by long steps, as a short-time Fourier transform is, reads windows that
// overlap. The line in blocks of a step each is a line of as many channels, over which the same convolution has no
// stride and a tap for each block of its window: a product on the matrix units, with gradients that are such products
// too. The blocks are a view where channels are last.

namespace plimsoll {
namespace {

constexpr int64_t few_channels = 8;  // so many are a vector of 16-bit floats, which kernels read as they stand

bool has_long_steps(const Graph& graph, const Node& conv) {
  const Type& x = graph.type(operand_of(conv, "x"));
  if (!conv.attrs.get_int("channels_last") || x.rank() != 3 || conv.attrs.get_int("groups", 1) != 1) return false;
  const llvm::ArrayRef<int64_t> strides = conv.attrs.get_ints("strides"), dilations = conv.attrs.get_ints("dilations");
  const int64_t channels = x.shape[2], stride = strides.empty() ? 1 : strides[0];
  return stride > 1 && channels < few_channels && stride * channels % few_channels == 0 &&
         (dilations.empty() || dilations[0] == 1);
}

// The value with so many elements along dimension 1, of which `front` zeros are new; ends are padded or cut off.
ValueId resized(Builder& b, ValueId value, int64_t front, int64_t size) {
  const Shape shape = b.type(value).shape;
  const int64_t end = front + shape[1];
  if (front > 0 || end < size)
    value = b.emit("pad", {value},
                   {{"before", Ints{0, front, 0}}, {"after", Ints{0, std::max<int64_t>(size - end, 0), 0}}});
  if (end > size)
    value = b.emit("slice", {value},
                   {{"starts", Ints{0, 0, 0}}, {"steps", Ints{1, 1, 1}}, {"sizes", Ints{shape[0], size, shape[2]}}});
  return value;
}

void fold(Graph& graph, NodeId id) {
  const Node conv = graph.node(id);  // a copy
  Builder b = builder_at(graph, id);
  const ValueId x = operand_of(conv, "x"), w = operand_of(conv, "w"), y = conv.results[0];
  const Shape from = b.type(x).shape, weights = b.type(w).shape;
  const llvm::ArrayRef<int64_t> pads = conv.attrs.get_ints("pads");
  const int64_t stride = conv.attrs.get_ints("strides")[0], channels = stride * from[2];
  const int64_t taps = (weights[1] + stride - 1) / stride, blocks = b.type(y).shape[1] - 1 + taps;
  const ValueId line =
      b.reshape(resized(b, x, pads.empty() ? 0 : pads[0], blocks * stride), {from[0], blocks, channels});
  const ValueId window = b.reshape(resized(b, w, 0, taps * stride), {weights[0], taps, channels});
  const ValueId folded =
      b.emit("conv", {line, window, operand_of(conv, "bias")}, {{"channels_last", int64_t{1}}}, graph.value(y).name);
  replace_and_rename(graph, y, folded);
}

Result<bool> run_fold_strides(Graph& graph, PassContext& context) {
  int64_t folded = 0;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "conv" || !has_long_steps(graph, node)) continue;
    fold(graph, id);
    ++folded;
  }
  if (folded > 0) context.count("convolutions", folded);
  return folded > 0;
}

}  // namespace

constinit const PassInfo pass_fold_strides{
    .name = "fold-strides",
    .summary = "make convolutions of a line of few channels by long steps ones of blocks of a step, without strides",
    .stage = Stage::Forward,
    .run = run_fold_strides,
};

}  // namespace plimsoll
