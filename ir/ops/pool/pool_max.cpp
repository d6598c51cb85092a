#include "ir/ops/pool/pool.h"

#include <limits>

// Max pooling. Its gradient finds the maxima again from x, or reads which element each window chose, one byte per
// window, so that x need not be kept.

namespace plimsoll {
namespace {

constexpr int64_t no_choice = 255;  // the choice of a window that meets no input

// For each element of y, its index in x, -1 where a window meets no input, and its choice, the place in the window: the
// first of the largest, where NaN is larger than anything.
struct Maxima {
  std::vector<int64_t> index, choice;
};

Maxima first_maxima(const Attrs& attrs, const TensorView& x, llvm::ArrayRef<int64_t> y_shape) {
  const auto windows = static_cast<size_t>(element_count(y_shape));
  Maxima best{std::vector<int64_t>(windows, -1), std::vector<int64_t>(windows, no_choice)};
  std::vector<double> values = all_elements(x);
  PoolWindows(attrs, x.type.shape, y_shape).for_each([&](int64_t at, int64_t output, int64_t, int64_t tap) {
    int64_t& chosen = best.index[output];
    bool is_first = chosen < 0, is_larger = !is_first && values[at] > values[chosen];
    if (!is_first && !is_larger && (values[at] == values[at] || values[chosen] != values[chosen])) return;
    chosen = at;
    best.choice[output] = tap;
  });
  return best;
}

Result<Types> infer_max_pool(const OpCall& call) {
  Result<Shape> shape = pooled_shape(call.attrs, call["x"].shape);
  if (!shape) return shape.takeError();
  Types types{Type(call["x"].dtype, *shape)};
  if (!call.get_int("choices")) return types;
  const int64_t elements = element_count(call.get_ints("kernel"));
  if (elements >= no_choice)
    return model_error("choices of windows of " + llvm::Twine(elements) +
                       " elements: a byte has room for those of up to " + llvm::Twine(no_choice - 1));
  types.emplace_back(DType::U8, *shape);
  return types;
}

void max_pool_gradient(GradContext& g) {
  Attrs attrs = g.attrs();
  attrs.erase("storage_order");
  attrs.erase("choices");
  ValueId maxima = g["x"];
  if (g.attrs().get_int("choices")) {
    const Shape shape = g.type(g["x"]).shape;
    attrs.set("shape", Ints(shape.begin(), shape.end()));
    maxima = g.result("choices");
  }
  g.add("x", g.b.emit("max_pool_grad", {maxima, g.out_grad()}, attrs));
}

void store_maxima(const std::vector<int64_t>& best, const TensorView& x, const TensorView& y) {
  for (size_t i = 0; i < best.size(); ++i) {
    if (best[i] >= 0)
      copy_elements(y, static_cast<int64_t>(i), x, best[i]);
    else
      y.set(static_cast<int64_t>(i), -std::numeric_limits<double>::infinity());
  }
}

void max_pool_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  const Maxima best = first_maxima(call.attrs, x, y.type.shape);
  store_maxima(best.index, x, y);
  if (call.gives("choices"))
    for (size_t i = 0; i < best.choice.size(); ++i)
      call.out("choices").set_int(static_cast<int64_t>(i), best.choice[i]);
}

std::vector<Sample> max_pool_samples() {
  using namespace samples;
  return {
      {{distinct({2, 2, 7})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}}},
      {{distinct({1, 2, 5, 5})}, {{"kernel", Ints{3, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 0, 1, 1}}}},
      {{distinct({1, 2, 6, 5})}, {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"ceil_mode", 1}}},
      {{distinct({1, 2, 3, 4, 3})}, {{"kernel", Ints{2, 2, 2}}, {"dilations", Ints{1, 2, 1}}}},
      {{distinct({2, 5, 4, 3})},
       {{"kernel", Ints{3, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"channels_last", 1}}},
      {{distinct({1, 5, 4, 8})},
       {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"channels_last", 1}}},
      {{distinct({1, 2, 5, 6})},
       {{"kernel", Ints{3, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"choices", 1}}},
      {{distinct({1, 5, 4, 8})},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"channels_last", 1},
        {"choices", 1}}},
  };
}

Result<Types> infer_max_pool_with_indices(const OpCall& call) {
  Result<Shape> shape = pooled_shape(call.attrs, call["x"].shape);
  if (!shape) return shape.takeError();
  return Types{Type(call["x"].dtype, *shape), Type(DType::I64, *shape)};
}

// The same element's index when the first spatial dimension runs fastest.
int64_t column_major(int64_t index, llvm::ArrayRef<int64_t> x_shape) {
  llvm::ArrayRef<int64_t> spatial = spatial_of(x_shape);
  int64_t size = element_count(spatial), rest = index % size, stride = size, moved = 0;
  for (size_t d = spatial.size(); d-- > 0; rest /= spatial[d]) {
    stride /= spatial[d];
    moved += rest % spatial[d] * stride;
  }
  return index - index % size + moved;
}

void max_pool_with_indices_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y"), &indices = call.out("indices");
  const Shape& x_shape = call["x"].shape;
  const std::vector<int64_t> best = first_maxima(call.attrs, x, y.type.shape).index;
  store_maxima(best, x, y);
  bool columns_first = call.get_int("storage_order");
  for (size_t i = 0; i < best.size(); ++i)
    indices.set_int(static_cast<int64_t>(i), columns_first && best[i] >= 0 ? column_major(best[i], x_shape) : best[i]);
}

std::vector<Sample> max_pool_with_indices_samples() {
  using namespace samples;
  return {
      {{distinct({2, 2, 6})}, {{"kernel", Ints{2}}, {"strides", Ints{2}}}},
      {{distinct({1, 2, 4, 5})}, {{"kernel", Ints{2, 3}}, {"pads", Ints{0, 1, 1, 1}}, {"storage_order", 1}}},
  };
}

bool reads_choices(const OpCall& call) { return call["x"].dtype == DType::U8; }

Result<Types> infer_max_pool_grad(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  if (reads_choices(call) != call.attrs.has("shape"))
    return model_error("choices go with {shape}, that of x, and x without");
  const Type& dy = call["dy"];
  const Type x(dy.dtype, reads_choices(call) ? call.get_ints("shape") : llvm::ArrayRef<int64_t>(call["x"].shape));
  Result<Shape> shape = pooled_shape(call.attrs, x.shape);
  if (!shape) return shape.takeError();
  if (Status s = need_shape(call, "dy", *shape)) return s;
  if (Status s = need_type(call, "x", reads_choices(call) ? Type(DType::U8, *shape) : x)) return s;
  return Types{x};
}

Result<Attrs> max_pool_grad_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  if (reads_choices(before)) return shape_attr_for_batch(before, after);
  return before.attrs;
}

void max_pool_grad_reference(const ReferenceCall& call) {
  const TensorView& x = call.in("x");
  const Shape &x_shape = call.out("dx").type.shape, &y_shape = call["dy"].shape;
  std::vector<double> dy = call.load("dy"), dx(static_cast<size_t>(element_count(x_shape)));
  std::vector<int64_t> choice(dy.size());
  for (size_t i = 0; reads_choices(call) && i < choice.size(); ++i) choice[i] = x.get_int(static_cast<int64_t>(i));
  if (!reads_choices(call)) choice = first_maxima(call.attrs, x, y_shape).choice;
  PoolWindows(call.attrs, x_shape, y_shape).for_each([&](int64_t input, int64_t output, int64_t, int64_t tap) {
    if (choice[output] == tap) dx[input] += dy[output];
  });
  call.store(dx, "dx");
}

std::vector<Sample> max_pool_grad_samples() {
  using namespace samples;
  return {
      {{distinct({2, 2, 7}), normal({2, 2, 3})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}}},
      {{distinct({1, 2, 4, 4}), normal({1, 2, 2, 2})}, {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}}},
      {{distinct({2, 4, 5, 3}), normal({2, 2, 4, 3})},
       {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 1}}, {"channels_last", 1}}},
      {{distinct({1, 5, 4, 8}), normal({1, 3, 2, 8})},
       {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"channels_last", 1}}},
      {{distinct({1, 8, 7, 16}), normal({1, 3, 3, 16})},
       {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"channels_last", 1}}},
      {{distinct({2, 5, 6, 8}), normal({2, 2, 3, 8})},
       {{"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"channels_last", 1}}},
      {{integers({2, 2, 4}, 0, 2, DType::U8), normal({2, 2, 4})},
       {{"kernel", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}, {"shape", Ints{2, 2, 7}}}},
      {{integers({1, 3, 2, 8}, 0, 8, DType::U8), normal({1, 3, 2, 8}, DType::BF16)},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"channels_last", 1},
        {"shape", Ints{1, 5, 4, 8}}}},
  };
}

std::optional<ChunkCall> max_pool_grad_chunk(const OpCall& call, Chunk chunk) {
  ChunkCall made = cut_operands(call, {"x", "dy"});
  return call.attrs.has("shape") ? with_chunk_of_shape(std::move(made), "shape", chunk) : std::optional(made);
}

}  // namespace

constinit const OpDef op_max_pool{
    .name = "max_pool",
    .summary =
        "largest element of each window of x[N, C, in...], with {choices} also its place in the window, u8; {kernel, "
        "strides, pads, dilations, ceil_mode, channels_last}",
    .results = {"y", "choices?choices"},
    .attrs = window_attrs.with({channels_last_attr, {"choices", 0}}),
    .infer = infer_max_pool,
    .gradient = Gradient::rule(max_pool_gradient),
    .dim_order = DimOrder::ChannelsLast,
    .flops = pool_flops,
    .chunk = chunk_of_first,
    .reference = max_pool_reference,
    .samples = max_pool_samples,
};

constinit const OpDef op_max_pool_grad{
    .name = "max_pool_grad",
    .summary =
        "gradient of max_pool's x from x and dy: all to a window's first maximum; attributes as in max_pool; from "
        "choices instead of x with {shape}, that of x",
    .operands = {"x", "dy"},
    .results = {"dx"},
    .attrs = window_attrs.with({channels_last_attr, {"shape", AttrKind::Ints, AttrNeed::Optional}}),
    .infer = infer_max_pool_grad,
    .gradient = no_second_derivative,
    .flops = pool_grad_flops,
    .attrs_for_batch = max_pool_grad_for_batch,
    .chunk = max_pool_grad_chunk,
    .linear = {"sum(dy)"},
    .reference = max_pool_grad_reference,
    .samples = max_pool_grad_samples,
};

constinit const OpDef op_max_pool_with_indices{
    .name = "max_pool_with_indices",
    .summary =
        "max_pool and the i64 index in x of every maximum; {kernel, strides, pads, dilations, ceil_mode,"
        " storage_order: 1 counts the first spatial dimension fastest}",
    .results = {"y", "indices"},
    .attrs = window_attrs.with({{"storage_order", 0}}),
    .infer = infer_max_pool_with_indices,
    .gradient = Gradient::rule(max_pool_gradient),
    .flops = pool_flops,
    .reference = max_pool_with_indices_reference,
    .samples = max_pool_with_indices_samples,
};

}  // namespace plimsoll
