#include "ir/ops/conv/conv.h"

// conv_transpose is the gradient of a convolution used forward: its result is that
// convolution's input, its operand that convolution's result. So its own gradients are
// conv and conv_dw with x and dy in each other's place.

namespace plimsoll {
namespace {

// The extent whose convolution has `input` positions; output_padding picks one of the `stride` many.
Result<Shape> transposed_extents(const Attrs& attrs, const SlidingWindow& window, llvm::ArrayRef<int64_t> input) {
  llvm::ArrayRef<int64_t> extra = attrs.get_ints("output_padding");
  if (!extra.empty() && extra.size() != window.rank)
    return model_error("output_padding has " + llvm::Twine(extra.size()) + " entries, expected " +
                       llvm::Twine(window.rank));
  Shape extents;
  for (size_t d = 0; d < window.rank; ++d) {
    int64_t added = extra.empty() ? 0 : extra[d];
    if (added < 0 || added >= window.strides[d])
      return model_error("output_padding " + llvm::Twine(added) + " must be less than the stride " +
                         llvm::Twine(window.strides[d]));
    int64_t whole = (input[d] - 1) * window.strides[d] + window.span(d) + added;
    extents.push_back(whole - window.pads_begin[d] - window.pads_end[d]);
    if (extents.back() < 1)
      return model_error("pads " + llvm::Twine(window.pads_begin[d] + window.pads_end[d]) +
                         " leave nothing of the result's extent " + llvm::Twine(whole));
  }
  return extents;
}

Result<Types> infer_conv_transpose(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_same_dtype(call, "x", "w")) return s;
  const Type &x = call["x"], &w = call["w"];
  if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank())
    return model_error("input " + to_string(x) + " and weight " + to_string(w) + " must have equal rank, 3 to 5");
  const Shape x_shape = channels_first(call.attrs, x.shape), w_shape = channels_first(call.attrs, w.shape);
  int64_t groups = call.get_int("groups");
  if (groups < 1 || x_shape[1] % groups != 0)
    return model_error(llvm::Twine(x_shape[1]) + " input channels do not divide into " + llvm::Twine(groups) +
                       " groups");
  if (w_shape[0] != x_shape[1])
    return model_error("the weight reads " + llvm::Twine(w_shape[0]) + " channels, the input has " +
                       llvm::Twine(x_shape[1]));
  Result<SlidingWindow> window = read_window(call.attrs, spatial_of(w_shape));
  if (!window) return window.takeError();
  Result<Shape> extents = transposed_extents(call.attrs, *window, spatial_of(x_shape));
  if (!extents) return extents.takeError();
  Shape shape{x_shape[0], w_shape[1] * groups};
  shape.append(extents->begin(), extents->end());
  if (Status s = need_type(call, "bias", Type(x.dtype, {shape[1]}))) return s;
  return one_result(x.dtype, in_layout(call.attrs, shape));
}

void conv_transpose_gradient(GradContext& g) {
  ValueId x = g["x"], w = g["w"], dy = g.out_grad();
  Attrs attrs = g.attrs();
  attrs.erase("output_padding");
  if (g.wants("x")) g.add("x", g.b.emit("conv", {dy, w}, attrs));
  if (g.wants("w")) g.add("w", g.b.emit("conv_dw", {dy, x}, with_shape(attrs, g.type(w).shape)));
  if (g.wants("bias")) g.add("bias", channel_sum(g.b, dy, g.attrs()));
}

double conv_transpose_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return product_flops(call["x"].shape, call["w"].shape);
}

void conv_transpose_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), w = call.load("w");
  std::vector<double> y = start_from_bias(call.attrs, call.out("y").type, call.load("bias"));
  for_each_product(call.attrs, call.out("y").type.shape, call["w"].shape, call["x"].shape,
                   [&](int64_t input, int64_t wi, int64_t output) { y[input] += x[output] * w[wi]; });
  call.store(y, "y");
}

std::vector<Sample> conv_transpose_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 4}), normal({3, 2, 3}), normal({2})}},
      {{normal({1, 2, 3, 3}), normal({2, 3, 3, 2}), normal({3})},
       {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 1, 1}}, {"output_padding", Ints{1, 2}}}},
      {{normal({1, 4, 3, 2}), normal({4, 1, 2, 2}), normal({2})},
       {{"groups", 2}, {"dilations", Ints{2, 1}}, {"strides", Ints{2, 1}}, {"output_padding", Ints{1, 0}}}},
      {{normal({1, 2, 2, 2, 2}), normal({2, 1, 2, 1, 2})}, {{"strides", Ints{2, 1, 2}}}},
      {{normal({1, 3, 2, 4}), normal({4, 2, 2, 1}), normal({2})},
       {{"groups", 2}, {"strides", Ints{2, 1}}, {"output_padding", Ints{1, 0}}, {"channels_last", 1}}},
      {{normal({2, 3, 3, 2}), normal({2, 3, 2, 3}), normal({3})}, {{"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
  };
}

}  // namespace

constinit const OpDef op_conv_transpose{
    .name = "conv_transpose",
    .summary =
        "transposed convolution of x[N, C, in...] with w[C, M/groups, kernel...] plus bias[M]; {strides, pads, "
        "dilations, groups, output_padding, channels_last}",
    .operands = {"x", "w", "bias?"},
    .attrs = conv_attrs.with({{"output_padding", AttrKind::Ints, AttrNeed::Optional}}),
    .infer = infer_conv_transpose,
    .gradient = Gradient::rule(conv_transpose_gradient),
    .precision = Precision::Low,
    .dim_order = DimOrder::ChannelsLast,
    .flops = conv_transpose_flops,
    .chunk = chunk_of_first,
    .linear = {"sum(x * w) + bias"},
    .reference = conv_transpose_reference,
    .samples = conv_transpose_samples,
};

}  // namespace plimsoll
