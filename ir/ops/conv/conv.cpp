#include "ir/ops/conv/conv.h"

// Convolution and its two gradients are one set of products x * w -> y, summed into
// whichever of the three is asked for; the references below say just that.

namespace plimsoll {

bool is_product_of_pixels(const Attrs& attrs, llvm::ArrayRef<int64_t> w) {
  const Shape first = channels_first(attrs, w);
  const auto all_are = [&](llvm::StringRef list, int64_t value) {
    return !attrs.has(list) || llvm::all_of(attrs.get_ints(list), [&](int64_t each) { return each == value; });
  };
  return attrs.get_int("groups", 1) == 1 && all_are("strides", 1) && all_are("pads", 0) &&
         llvm::all_of(spatial_of(first), [](int64_t taps) { return taps == 1; });
}

void conv_gradient(GradContext& g) {
  ValueId x = g["x"], w = g["w"], dy = g.out_grad();
  if (g.wants("x")) g.add("x", g.b.emit("conv_dx", {dy, w}, with_shape(g.attrs(), g.type(x).shape)));
  if (g.wants("w")) g.add("w", g.b.emit("conv_dw", {x, dy}, with_shape(g.attrs(), g.type(w).shape)));
  if (g.wants("bias")) g.add("bias", channel_sum(g.b, dy, g.attrs()));
}

double conv_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return product_flops(results[0].shape, call["w"].shape);
}

std::vector<double> convolved(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), w = call.load("w");
  std::vector<double> y = start_from_bias(call.attrs, call.out("y").type, call.load("bias"));
  for_each_product(call.attrs, call["x"].shape, call["w"].shape, call.out("y").type.shape,
                   [&](int64_t xi, int64_t wi, int64_t yi) { y[yi] += x[xi] * w[wi]; });
  return y;
}

std::vector<double> convolved_gradient(const ReferenceCall& call, PortKey dx) {
  const Type& type = call.out(dx).type;
  std::vector<double> dy = call.load("dy"), w = call.load("w"), sums = start_from_bias(call.attrs, type, {});
  for_each_product(call.attrs, type.shape, call["w"].shape, call["dy"].shape,
                   [&](int64_t xi, int64_t wi, int64_t yi) { sums[xi] += dy[yi] * w[wi]; });
  return sums;
}

double conv_dx_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return product_flops(call["dy"].shape, call["w"].shape);
}

namespace {

Result<Types> infer_conv(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_same_dtype(call, "x", "w")) return s;
  const Type &x = call["x"], &w = call["w"];
  Result<Shape> shape = convolved_shape(call.attrs, x.shape, w.shape);
  if (!shape) return shape.takeError();
  if (Status s = need_type(call, "bias", Type(x.dtype, {w.shape[0]}))) return s;
  return one_result(x.dtype, *shape);
}

void conv_reference(const ReferenceCall& call) { call.store(convolved(call), "y"); }

std::vector<Sample> conv_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 5}), normal({4, 3, 3}), normal({4})}, {{"pads", Ints{1, 0}}}},
      {{normal({2, 3, 5}, DType::BF16), normal({4, 3, 3}, DType::BF16), normal({4}, DType::BF16)}},
      {{normal({1, 2, 5, 4}), normal({3, 2, 3, 2})}, {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 2, 1}}}},
      {{normal({1, 4, 5, 5}), normal({2, 2, 2, 2}), normal({2})}, {{"dilations", Ints{2, 3}}, {"groups", 2}}},
      {{normal({1, 2, 3, 3, 2}), normal({2, 1, 2, 2, 1})}, {{"groups", 2}, {"strides", Ints{1, 2, 1}}}},
      {{normal({2, 5, 3}), normal({4, 3, 3}), normal({4})}, {{"pads", Ints{1, 0}}, {"channels_last", 1}}},
      {{normal({1, 5, 4, 4}), normal({2, 3, 2, 2}), normal({2})},
       {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 2, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 4, 3, 3}), normal({3, 2, 2, 1})}, {{"groups", 3}, {"channels_last", 1}}},
      {{normal({1, 3, 3, 2, 2}), normal({3, 2, 2, 1, 2})}, {{"channels_last", 1}}},
      {{normal({2, 5, 4, 16, 1}), normal({16, 3, 3, 1, 1}), normal({16})},
       {{"pads", Ints{1, 1, 0, 1, 1, 0}}, {"channels_last", 1}}},
      {{normal({2, 6, 5, 3}), normal({8, 3, 2, 3}), normal({8})},
       {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
      {{normal({1, 9, 8, 3}), normal({8, 5, 5, 3})},
       {{"strides", Ints{2, 2}}, {"pads", Ints{2, 2, 1, 2}}, {"channels_last", 1}}},
      {{normal({2, 4, 7, 3}), normal({8, 2, 2, 3}), normal({8})}, {{"strides", Ints{2, 2}}, {"channels_last", 1}}},
      {{normal({2, 12, 11, 8}), normal({8, 3, 3, 8}), normal({8})},
       {{"dilations", Ints{10, 9}}, {"pads", Ints{10, 9, 10, 8}}, {"channels_last", 1}}},
      {{normal({2, 11, 1}), normal({8, 4, 1})}, {{"strides", Ints{3}}, {"pads", Ints{1, 2}}, {"channels_last", 1}}},
      // Channels in groups: one each, and whole vectors of 8.
      {{normal({2, 5, 7, 16}), normal({16, 3, 3, 1}), normal({16})},
       {{"pads", Ints{1, 1, 1, 1}}, {"groups", 16}, {"channels_last", 1}}},
      {{normal({3, 6, 5, 8}), normal({8, 7, 7, 1})}, {{"pads", Ints{3, 3, 3, 3}}, {"groups", 8}, {"channels_last", 1}}},
      {{normal({2, 7, 6, 8}), normal({8, 5, 5, 1}), normal({8})},
       {{"strides", Ints{2, 2}}, {"pads", Ints{2, 1, 2, 3}}, {"groups", 8}, {"channels_last", 1}}},
      {{normal({1, 6, 5, 3}), normal({3, 3, 2, 1})},
       {{"dilations", Ints{2, 1}}, {"strides", Ints{1, 2}}, {"groups", 3}, {"channels_last", 1}}},
      {{normal({1, 5, 6, 16}), normal({16, 3, 3, 8}), normal({16})},
       {{"pads", Ints{1, 1, 1, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 5, 4, 48}), normal({32, 3, 3, 24})},
       {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 9, 32}), normal({32, 4, 16}), normal({32})},
       {{"pads", Ints{2, 1}}, {"groups", 2}, {"channels_last", 1}}},
  };
}

Result<Types> infer_conv_dx(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  if (Status s = need_same_dtype(call, "dy", "w")) return s;
  llvm::ArrayRef<int64_t> x_shape = call.get_ints("shape");
  Result<Shape> dy_shape = convolved_shape(call.attrs, x_shape, call["w"].shape);
  if (!dy_shape) return dy_shape.takeError();
  if (Status s = need_shape(call, "dy", *dy_shape)) return s;
  return one_result(call["dy"].dtype, x_shape);
}

void conv_dx_reference(const ReferenceCall& call) { call.store(convolved_gradient(call, "dx"), "dx"); }

std::vector<Sample> conv_dx_samples() {
  using namespace samples;
  return {
      {{normal({2, 4, 3}), normal({4, 3, 3})}, {{"shape", Ints{2, 3, 5}}}},
      {{normal({2, 4, 3}, DType::BF16), normal({4, 3, 3}, DType::BF16)}, {{"shape", Ints{2, 3, 5}}}},
      {{normal({1, 2, 3, 2}), normal({2, 1, 2, 2})},
       {{"shape", Ints{1, 2, 6, 4}}, {"groups", 2}, {"strides", Ints{2, 2}}}},
      {{normal({2, 3, 2, 4}), normal({4, 2, 3, 3})},
       {{"shape", Ints{2, 6, 4, 3}}, {"strides", Ints{2, 1}}, {"channels_last", 1}}},
      {{normal({2, 5, 4, 16, 16}), normal({16, 3, 3, 1, 1})},
       {{"shape", Ints{2, 5, 4, 16, 1}}, {"pads", Ints{1, 1, 0, 1, 1, 0}}, {"channels_last", 1}}},
      {{normal({2, 12, 10, 8}), normal({8, 3, 3, 8})},
       {{"shape", Ints{2, 12, 11, 8}}, {"dilations", Ints{10, 9}}, {"pads", Ints{10, 9, 10, 8}}, {"channels_last", 1}}},
      {{normal({2, 5, 7, 16}), normal({16, 3, 3, 1})},
       {{"shape", Ints{2, 5, 7, 16}}, {"pads", Ints{1, 1, 1, 1}}, {"groups", 16}, {"channels_last", 1}}},
      {{normal({3, 6, 5, 8}), normal({8, 7, 7, 1})},
       {{"shape", Ints{3, 6, 5, 8}}, {"pads", Ints{3, 3, 3, 3}}, {"groups", 8}, {"channels_last", 1}}},
      {{normal({2, 4, 3, 8}), normal({8, 5, 5, 1})},
       {{"shape", Ints{2, 7, 6, 8}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{2, 1, 2, 3}},
        {"groups", 8},
        {"channels_last", 1}}},
      {{normal({1, 2, 2, 3}), normal({3, 3, 2, 1})},
       {{"shape", Ints{1, 6, 5, 3}},
        {"dilations", Ints{2, 1}},
        {"strides", Ints{1, 2}},
        {"groups", 3},
        {"channels_last", 1}}},
      {{normal({1, 5, 6, 16}), normal({16, 3, 3, 8})},
       {{"shape", Ints{1, 5, 6, 16}}, {"pads", Ints{1, 1, 1, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 3, 2, 32}), normal({32, 3, 3, 24})},
       {{"shape", Ints{2, 5, 4, 48}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"groups", 2},
        {"channels_last", 1}}},
      {{normal({2, 9, 32}), normal({32, 4, 16})},
       {{"shape", Ints{2, 9, 32}}, {"pads", Ints{2, 1}}, {"groups", 2}, {"channels_last", 1}}},
  };
}

Result<Types> infer_conv_dw(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_same_dtype(call, "x", "dy")) return s;
  llvm::ArrayRef<int64_t> w_shape = call.get_ints("shape");
  Result<Shape> dy_shape = convolved_shape(call.attrs, call["x"].shape, w_shape);
  if (!dy_shape) return dy_shape.takeError();
  if (Status s = need_shape(call, "dy", *dy_shape)) return s;
  Result<DType> dtype = sum_dtype(call);
  if (!dtype) return dtype.takeError();
  return one_result(*dtype, w_shape);
}

double conv_dw_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return product_flops(call["dy"].shape, results[0].shape);
}

void conv_dw_reference(const ReferenceCall& call) {
  std::vector<double> x = call.load("x"), dy = call.load("dy"),
                      dw = start_from_bias(call.attrs, call.out("dw").type, {});
  for_each_product(call.attrs, call["x"].shape, call.out("dw").type.shape, call["dy"].shape,
                   [&](int64_t xi, int64_t wi, int64_t yi) { dw[wi] += x[xi] * dy[yi]; });
  call.store(dw, "dw");
}

std::vector<Sample> conv_dw_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 5}), normal({2, 4, 3})}, {{"shape", Ints{4, 3, 3}}}},
      {{normal({1, 2, 6, 4}), normal({1, 2, 3, 2})},
       {{"shape", Ints{2, 1, 2, 2}}, {"groups", 2}, {"strides", Ints{2, 2}}}},
      {{normal({2, 3, 5}, DType::BF16), normal({2, 4, 3}, DType::BF16)},
       {{"shape", Ints{4, 3, 3}}, {"dtype", DType::F32}}},
      {{normal({2, 3, 5}, DType::F16), normal({2, 4, 3}, DType::F16)}, {{"shape", Ints{4, 3, 3}}}},
      {{normal({2, 6, 4, 4}), normal({2, 3, 3, 6})},
       {{"shape", Ints{6, 2, 2, 2}}, {"strides", Ints{2, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 5, 4, 16, 1}, DType::BF16), normal({2, 5, 4, 16, 16}, DType::BF16)},
       {{"shape", Ints{16, 3, 3, 1, 1}},
        {"pads", Ints{1, 1, 0, 1, 1, 0}},
        {"channels_last", 1},
        {"dtype", DType::F32}}},
      {{normal({2, 6, 5, 3}), normal({2, 3, 5, 8})},
       {{"shape", Ints{8, 3, 2, 3}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
      {{normal({1, 9, 8, 3}), normal({1, 4, 4, 8})},
       {{"shape", Ints{8, 5, 5, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{2, 2, 1, 2}}, {"channels_last", 1}}},
      {{normal({2, 4, 7, 3}, DType::BF16), normal({2, 2, 3, 8}, DType::BF16)},
       {{"shape", Ints{8, 2, 2, 3}}, {"strides", Ints{2, 2}}, {"channels_last", 1}, {"dtype", DType::F32}}},
      {{normal({2, 12, 11, 8}, DType::BF16), normal({2, 12, 10, 8}, DType::BF16)},
       {{"shape", Ints{8, 3, 3, 8}},
        {"dilations", Ints{10, 9}},
        {"pads", Ints{10, 9, 10, 8}},
        {"channels_last", 1},
        {"dtype", DType::F32}}},
      {{normal({2, 11, 1}), normal({2, 4, 8})},
       {{"shape", Ints{8, 4, 1}}, {"strides", Ints{3}}, {"pads", Ints{1, 2}}, {"channels_last", 1}}},
      {{normal({2, 5, 7, 16}, DType::BF16), normal({2, 5, 7, 16}, DType::BF16)},
       {{"shape", Ints{16, 3, 3, 1}},
        {"pads", Ints{1, 1, 1, 1}},
        {"groups", 16},
        {"channels_last", 1},
        {"dtype", DType::F32}}},
      {{normal({3, 6, 5, 8}), normal({3, 6, 5, 8})},
       {{"shape", Ints{8, 7, 7, 1}}, {"pads", Ints{3, 3, 3, 3}}, {"groups", 8}, {"channels_last", 1}}},
      {{normal({2, 7, 6, 8}), normal({2, 4, 3, 8})},
       {{"shape", Ints{8, 5, 5, 1}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{2, 1, 2, 3}},
        {"groups", 8},
        {"channels_last", 1}}},
      {{normal({1, 6, 5, 3}), normal({1, 2, 2, 3})},
       {{"shape", Ints{3, 3, 2, 1}},
        {"dilations", Ints{2, 1}},
        {"strides", Ints{1, 2}},
        {"groups", 3},
        {"channels_last", 1}}},
      {{normal({1, 5, 6, 16}), normal({1, 5, 6, 16})},
       {{"shape", Ints{16, 3, 3, 8}}, {"pads", Ints{1, 1, 1, 1}}, {"groups", 2}, {"channels_last", 1}}},
      {{normal({2, 5, 4, 48}, DType::BF16), normal({2, 3, 2, 32}, DType::BF16)},
       {{"shape", Ints{32, 3, 3, 24}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"groups", 2},
        {"channels_last", 1},
        {"dtype", DType::F32}}},
      {{normal({2, 9, 32}), normal({2, 9, 32})},
       {{"shape", Ints{32, 4, 16}}, {"pads", Ints{2, 1}}, {"groups", 2}, {"channels_last", 1}}},
  };
}

std::optional<ChunkCall> conv_dx_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_shape(cut_operands(call, {"dy"}), "shape", chunk);
}

std::optional<ChunkCall> conv_dw_chunk(const OpCall& call, Chunk) {
  ChunkCall made = cut_operands(call, {"x", "dy"});
  made.combine = {Combine::Sum};
  return made;
}

}  // namespace

constinit const OpDef op_conv{
    .name = "conv",
    .summary =
        "convolution of x[N, C, in...] with w[M, C/groups, kernel...] plus bias[M]; {strides, pads, dilations, "
        "groups, channels_last}, pads being all begins, then all ends",
    .operands = {"x", "w", "bias?"},
    .attrs = conv_attrs,
    .infer = infer_conv,
    .gradient = Gradient::rule(conv_gradient),
    .precision = Precision::Low,
    .dim_order = DimOrder::ChannelsLast,
    .flops = conv_flops,
    .chunk = chunk_of_first,
    .linear = {"sum(x * w) + bias"},
    .reference = conv_reference,
    .samples = conv_samples,
};

constinit const OpDef op_conv_dx{
    .name = "conv_dx",
    .summary = "gradient of conv's x from dy and w; {shape} is x's, the rest as in conv",
    .operands = {"dy", "w"},
    .results = {"dx"},
    .attrs = conv_attrs.with({shape_attr}),
    .infer = infer_conv_dx,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = conv_dx_flops,
    .attrs_for_batch = shape_attr_for_batch,
    .chunk = conv_dx_chunk,
    .linear = {"sum(dy * w)"},
    .reference = conv_dx_reference,
    .samples = conv_dx_samples,
};

constinit const OpDef op_conv_dw{
    .name = "conv_dw",
    .summary = "gradient of conv's w from x and dy; {shape} is w's, {dtype} what it is rounded to, the rest as in conv",
    .operands = {"x", "dy"},
    .results = {"dw"},
    .attrs = conv_attrs.with({shape_attr, sum_dtype_attr}),
    .infer = infer_conv_dw,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = conv_dw_flops,
    .chunk = conv_dw_chunk,
    .linear = {"sum(x * dy)"},
    .reference = conv_dw_reference,
    .samples = conv_dw_samples,
};

}  // namespace plimsoll
