#include "ir/ops/common/spatial.h"

// The patches that a window cuts out of an image, each with all of its elements, and the sum of patches where they
// overlap. Each is the other's gradient. Patches are y[N, C, taps, out...], or y[N, out..., taps, C] with channels
// last, where a tap is an element of the kernel; taps outside the image are 0 and add nothing.

namespace plimsoll {
namespace {

constexpr AttrSpecs patch_attrs{
    {"kernel", AttrKind::Ints}, strides_attr, pads_attr, dilations_attr, channels_last_attr};

// The patches of an image of that shape, all attributes checked.
Result<Shape> patches_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x) {
  const llvm::ArrayRef<int64_t> kernel = attrs.get_ints("kernel");
  if (x.size() != kernel.size() + 2)
    return model_error("input " + to_string(x) + " must have rank " + llvm::Twine(kernel.size() + 2) +
                       " for a kernel of " + llvm::Twine(kernel.size()) + " dimensions");
  const Shape first = channels_first(attrs, x);
  Result<SlidingWindow> window = read_window(attrs, kernel);
  if (!window) return window.takeError();
  Result<Shape> positions = window_positions(*window, spatial_of(first), Rounding::Down);
  if (!positions) return positions.takeError();
  const int64_t taps = element_count(kernel);
  Shape shape{first[0]};
  if (is_channels_last(attrs)) {
    shape.append(positions->begin(), positions->end());
    shape.append({taps, first[1]});
  } else {
    shape.append({first[1], taps});
    shape.append(positions->begin(), positions->end());
  }
  return shape;
}

// visit(x, y): flat indices of each element of the image in each patch it is in.
template <typename Visit>
void for_each_patch_element(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape, llvm::ArrayRef<int64_t> y_shape,
                            Visit visit) {
  const Shape x = channels_first(attrs, x_shape);
  const ChannelPlaces in_x(attrs, x);
  const bool last = is_channels_last(attrs);
  const int64_t channels = x[1], tap_count = element_count(attrs.get_ints("kernel"));
  const llvm::ArrayRef<int64_t> extents = y_shape.slice(last ? 1 : 3, x.size() - 2);
  const int64_t positions = element_count(extents);
  const Taps taps(llvm::cantFail(read_window(attrs, attrs.get_ints("kernel"))), spatial_of(x), extents);
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t c = 0; c < channels; ++c)
      taps.for_each([&](int64_t input, int64_t tap, int64_t position) {
        const int64_t at = last ? ((n * positions + position) * tap_count + tap) * channels + c
                                : ((n * channels + c) * tap_count + tap) * positions + position;
        visit(in_x.at(n, c, input), at);
      });
}

Result<Types> infer_unfold(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  Result<Shape> shape = patches_shape(call.attrs, call["x"].shape);
  if (!shape) return shape.takeError();
  return one_result(call["x"].dtype, *shape);
}

Result<Types> infer_fold(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  const llvm::ArrayRef<int64_t> image = call.get_ints("shape");
  Result<Shape> shape = patches_shape(call.attrs, image);
  if (!shape) return shape.takeError();
  if (Status s = need_shape(call, "x", *shape)) return s;
  return one_result(call["x"].dtype, image);
}

void unfold_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  Attrs attrs = g.attrs();
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  g.add("x", g.b.emit("fold", {g.out_grad()}, attrs));
}

void fold_gradient(GradContext& g) {
  Attrs attrs = g.attrs();
  attrs.erase("shape");
  g.add("x", g.b.emit("unfold", {g.out_grad()}, attrs));
}

void unfold_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x");
  std::vector<double> y(static_cast<size_t>(call.out("y").elements()));
  for_each_patch_element(call.attrs, call["x"].shape, call.out("y").type.shape,
                         [&](int64_t from, int64_t to) { y[to] = x[from]; });
  call.store(y, "y");
}

void fold_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x");
  std::vector<double> y(static_cast<size_t>(call.out("y").elements()));
  for_each_patch_element(call.attrs, call.out("y").type.shape, call["x"].shape,
                         [&](int64_t to, int64_t from) { y[to] += x[from]; });
  call.store(y, "y");
}

double one_add_each(const OpCall& call, llvm::ArrayRef<Type>) { return static_cast<double>(call["x"].elements()); }

std::optional<ChunkCall> fold_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_shape(cut_operands(call, {"x"}), "shape", chunk);
}

std::vector<Sample> unfold_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 7})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}}},
      {{normal({1, 2, 5, 4})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}}},
      {{normal({1, 2, 3, 4, 3})}, {{"kernel", Ints{2, 2, 2}}, {"dilations", Ints{1, 2, 1}}}},
      {{normal({2, 4, 6, 3})},
       {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"channels_last", 1}}},
      {{normal({2, 5, 6, 8}, DType::BF16)},
       {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"channels_last", 1}}},
      {{normal({1, 6, 7, 4}, DType::F16)},
       {{"kernel", Ints{3, 5}}, {"strides", Ints{1, 2}}, {"dilations", Ints{2, 1}}, {"channels_last", 1}}},
  };
}

std::vector<Sample> fold_samples() {
  using namespace samples;
  return {
      {{normal({2, 3, 3, 3})}, {{"kernel", Ints{3}}, {"strides", Ints{2}}, {"shape", Ints{2, 3, 7}}}},
      {{normal({1, 2, 6, 5, 4})}, {{"kernel", Ints{3, 2}}, {"pads", Ints{1, 0, 1, 1}}, {"shape", Ints{1, 2, 5, 4}}}},
      {{normal({1, 2, 8, 2, 2, 2})},
       {{"kernel", Ints{2, 2, 2}}, {"dilations", Ints{1, 2, 1}}, {"shape", Ints{1, 2, 3, 4, 3}}}},
      {{normal({2, 2, 3, 9, 3})},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"shape", Ints{2, 4, 6, 3}},
        {"channels_last", 1}}},
      {{normal({2, 3, 3, 9, 8}, DType::BF16)},
       {{"kernel", Ints{3, 3}},
        {"strides", Ints{2, 2}},
        {"pads", Ints{1, 1, 1, 1}},
        {"shape", Ints{2, 5, 6, 8}},
        {"channels_last", 1}}},
      {{normal({1, 2, 2, 15, 4}, DType::F16)},
       {{"kernel", Ints{3, 5}},
        {"strides", Ints{1, 2}},
        {"dilations", Ints{2, 1}},
        {"shape", Ints{1, 6, 7, 4}},
        {"channels_last", 1}}},
  };
}

}  // namespace

constinit const OpDef op_unfold{
    .name = "unfold",
    .summary =
        "patches y[N, C, taps, out...] of x[N, C, in...], or y[N, out..., taps, C] with channels last; {kernel, "
        "strides, pads, dilations, channels_last}",
    .attrs = patch_attrs,
    .infer = infer_unfold,
    .gradient = Gradient::rule(unfold_gradient),
    .moves_elements = true,
    .flops = no_flops,
    .chunk = chunk_of_first,
    .linear = {"x"},
    .reference = unfold_reference,
    .samples = unfold_samples,
};

constinit const OpDef op_fold{
    .name = "fold",
    .summary = "sum of the patches of an image of {shape} where they overlap; the rest as in unfold",
    .attrs = patch_attrs.with({{"shape", AttrKind::Ints}}),
    .infer = infer_fold,
    .gradient = Gradient::rule(fold_gradient),
    .flops = one_add_each,
    .attrs_for_batch = shape_attr_for_batch,
    .chunk = fold_chunk,
    .linear = {"sum(x)"},
    .reference = fold_reference,
    .samples = fold_samples,
};

}  // namespace plimsoll
