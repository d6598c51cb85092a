#include "ir/ops/pool/pool.h"

// Average pooling. It is linear, so its gradient needs nothing but the shape of x.

namespace plimsoll {
namespace {

constexpr AttrSpecs average_attrs = window_attrs.with({{"count_include_pad", 0}, channels_last_attr});

// The number of elements that each window position averages over: those it shares with the input, or with
// {count_include_pad} the padded input. What sticks out further never counts.
std::vector<double> window_counts(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape,
                                  llvm::ArrayRef<int64_t> y_shape) {
  const Shape x = channels_first(attrs, x_shape), y = channels_first(attrs, y_shape);
  SlidingWindow window = llvm::cantFail(read_window(attrs, attrs.get_ints("kernel")));
  Shape extents(spatial_of(x).begin(), spatial_of(x).end());
  if (attrs.get_int("count_include_pad"))
    for (size_t d = 0; d < window.rank; ++d) {
      extents[d] += window.pads_begin[d] + window.pads_end[d];
      window.pads_begin[d] = window.pads_end[d] = 0;
    }
  std::vector<double> counts(static_cast<size_t>(element_count(spatial_of(y))));
  Taps(window, extents, spatial_of(y)).for_each([&](int64_t, int64_t, int64_t output) { ++counts[output]; });
  return counts;
}

Result<Types> infer_average_pool(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  Result<Shape> shape = pooled_shape(call.attrs, call["x"].shape);
  if (!shape) return shape.takeError();
  return one_result(call["x"].dtype, *shape);
}

void average_pool_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  Attrs attrs = g.attrs();
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  g.add("x", g.b.emit("average_pool_grad", {g.out_grad()}, attrs));
}

void average_pool_reference(const ReferenceCall& call) {
  const Shape &x_shape = call["x"].shape, &y_shape = call.out("y").type.shape;
  std::vector<double> counts = window_counts(call.attrs, x_shape, y_shape);
  std::vector<double> x = call.load("x"), y(static_cast<size_t>(call.out("y").elements()));
  PoolWindows(call.attrs, x_shape, y_shape).for_each([&](int64_t input, int64_t output, int64_t position, int64_t) {
    y[output] += x[input] / counts[position];
  });
  call.store(y, "y");
}

std::vector<Sample> average_pool_samples() {
  using namespace samples;
  return {
      {{normal({2, 2, 7})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}}},
      {{normal({1, 2, 4, 5})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}}},
      {{normal({1, 2, 5, 4})},
       {{"kernel", Ints{2, 2}},
        {"strides", Ints{2, 3}},
        {"pads", Ints{1, 1, 0, 1}},
        {"ceil_mode", 1},
        {"count_include_pad", 1}}},
      {{normal({1, 2, 3, 4, 3})}, {{"kernel", Ints{2, 2, 2}}, {"dilations", Ints{1, 2, 1}}}},
      {{normal({2, 4, 5, 3})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
      {{normal({1, 4, 3, 8})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
      {{normal({2, 5, 6, 4})}, {{"kernel", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"channels_last", 1}}},
      {{normal({1, 6, 9, 2})},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 0, 1, 2}},
        {"count_include_pad", 1},
        {"channels_last", 1}}},
      {{normal({1, 5, 7, 8})},
       {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"ceil_mode", 1}, {"channels_last", 1}}},
  };
}

Result<Types> infer_average_pool_grad(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  llvm::ArrayRef<int64_t> x_shape = call.get_ints("shape");
  Result<Shape> shape = pooled_shape(call.attrs, x_shape);
  if (!shape) return shape.takeError();
  if (Status s = need_shape(call, "dy", *shape)) return s;
  return one_result(call["dy"].dtype, x_shape);
}

void average_pool_grad_reference(const ReferenceCall& call) {
  const Shape &x_shape = call.out("dx").type.shape, &y_shape = call["dy"].shape;
  std::vector<double> counts = window_counts(call.attrs, x_shape, y_shape);
  std::vector<double> dy = call.load("dy"), dx(static_cast<size_t>(call.out("dx").elements()));
  PoolWindows(call.attrs, x_shape, y_shape).for_each([&](int64_t input, int64_t output, int64_t position, int64_t) {
    dx[input] += dy[output] / counts[position];
  });
  call.store(dx, "dx");
}

std::vector<Sample> average_pool_grad_samples() {
  using namespace samples;
  return {
      {{normal({2, 2, 3})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}, {"shape", Ints{2, 2, 7}}}},
      {{normal({1, 2, 4, 5})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"shape", Ints{1, 2, 4, 5}}}},
      {{normal({2, 2, 3, 3})},
       {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 1}}, {"shape", Ints{2, 5, 4, 3}}, {"channels_last", 1}}},
      {{normal({1, 2, 3, 8})},
       {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 1}}, {"shape", Ints{1, 5, 4, 8}}, {"channels_last", 1}}},
      {{normal({2, 5, 6, 4})},
       {{"kernel", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"shape", Ints{2, 5, 6, 4}}, {"channels_last", 1}}},
      {{normal({1, 5, 4, 1})},
       {{"kernel", Ints{3, 3}},
        {"pads", Ints{2, 0, 0, 1}},
        {"shape", Ints{1, 5, 5, 1}},
        {"count_include_pad", 1},
        {"channels_last", 1}}},
      {{normal({1, 3, 5, 2})},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 0, 1, 2}},
        {"shape", Ints{1, 6, 9, 2}},
        {"count_include_pad", 1},
        {"channels_last", 1}}},
      {{normal({1, 3, 4, 8})},
       {{"kernel", Ints{2, 2}},
        {"strides", Ints{2, 2}},
        {"ceil_mode", 1},
        {"shape", Ints{1, 5, 7, 8}},
        {"channels_last", 1}}},
  };
}

std::optional<ChunkCall> average_pool_grad_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_shape(cut_operands(call, {"dy"}), "shape", chunk);
}

}  // namespace

constinit const OpDef op_average_pool{
    .name = "average_pool",
    .summary =
        "mean of each window of x[N, C, in...]; {kernel, strides, pads, dilations, ceil_mode, "
        "count_include_pad, channels_last}",
    .attrs = average_attrs,
    .infer = infer_average_pool,
    .gradient = Gradient::rule(average_pool_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .flops = pool_flops,
    .chunk = chunk_of_first,
    .linear = {"sum(x)"},
    .reference = average_pool_reference,
    .samples = average_pool_samples,
};

constinit const OpDef op_average_pool_grad{
    .name = "average_pool_grad",
    .summary = "gradient of average_pool's x, of {shape}, from dy; the rest as in average_pool",
    .operands = {"dy"},
    .results = {"dx"},
    .attrs = average_attrs.with({{"shape", AttrKind::Ints}}),
    .infer = infer_average_pool_grad,
    .gradient = no_second_derivative,
    .flops = pool_grad_flops,
    .attrs_for_batch = shape_attr_for_batch,
    .chunk = average_pool_grad_chunk,
    .linear = {"sum(dy)"},
    .reference = average_pool_grad_reference,
    .samples = average_pool_grad_samples,
};

}  // namespace plimsoll
