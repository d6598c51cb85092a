// Resampling as ONNX Resize defines it. It is separable: along each axis every result element is a weighted
// sum of a few elements of x (its taps), or a constant outside the region of interest. The gradient applies
// the same taps backwards.

#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

using namespace samples;

constexpr llvm::StringLiteral coordinate_modes[] = {"half_pixel",        "pytorch_half_pixel",   "align_corners",
                                                    "asymmetric",        "half_pixel_symmetric", "tf_half_pixel_for_nn",
                                                    "tf_crop_and_resize"};

llvm::StringRef coordinate_mode(const Attrs& attrs) { return attrs.get_string("coordinate", "half_pixel"); }

// ---- Taps ----

struct Tap {
  int64_t index;
  double weight;
};
// The taps of one result element; none where it takes the extrapolation value.
using Taps = llvm::SmallVector<Tap, 4>;

struct Axis {
  int64_t in, out;
  double scale;
  double roi_start, roi_end;
};

// The centre of result element k on x's axis.
double source_coordinate(const Attrs& attrs, const Axis& axis, int64_t k) {
  llvm::StringRef mode = coordinate_mode(attrs);
  auto x = static_cast<double>(k), in = static_cast<double>(axis.in), out = static_cast<double>(axis.out);
  if (mode == "asymmetric") return x / axis.scale;
  if (mode == "align_corners") return axis.out == 1 ? 0 : x * (in - 1) / (out - 1);
  if (mode == "tf_half_pixel_for_nn") return (x + 0.5) / axis.scale;
  if (mode == "tf_crop_and_resize")
    return axis.out == 1 ? 0.5 * (axis.roi_start + axis.roi_end) * (in - 1)
                         : axis.roi_start * (in - 1) + x * (axis.roi_end - axis.roi_start) * (in - 1) / (out - 1);
  if (mode == "pytorch_half_pixel" && axis.out == 1) return 0;
  double offset = 0;
  if (mode == "half_pixel_symmetric") offset = in / 2 * (1 - out / (axis.scale * in));
  return offset + (x + 0.5) / axis.scale - 0.5;
}

double nearest_index(const Attrs& attrs, double at) {
  llvm::StringRef rounding = attrs.get_string("nearest", "round_prefer_floor");
  if (rounding == "floor") return std::floor(at);
  if (rounding == "ceil") return std::ceil(at);
  return rounding == "round_prefer_ceil" ? std::floor(at + 0.5) : std::ceil(at - 0.5);
}

// The cubic convolution kernel (Keys 1981) at `distance` from the centre.
double cubic_weight(double a, double distance) {
  double d = std::fabs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

// The taps by their positions, which may lie outside x.
Taps unbounded_taps(const Attrs& attrs, double at) {
  llvm::StringRef mode = attrs.get_string("mode");
  if (mode == "nearest") return {{static_cast<int64_t>(nearest_index(attrs, at)), 1}};
  auto low = static_cast<int64_t>(std::floor(at));
  double fraction = at - static_cast<double>(low);
  if (mode == "linear") return {{low, 1 - fraction}, {low + 1, fraction}};
  Taps taps;
  for (int64_t i = -1; i <= 2; ++i)
    taps.push_back({low + i, cubic_weight(attrs.get_float("cubic_a", -0.75), static_cast<double>(i) - fraction)});
  return taps;
}

// A tap outside x reads the nearest edge, or drops out and leaves its weight to the others.
Taps taps_at(const Attrs& attrs, const Axis& axis, int64_t k) {
  double at = source_coordinate(attrs, axis, k);
  bool outside = at < 0 || at > static_cast<double>(axis.in - 1);
  if (outside && coordinate_mode(attrs) == "tf_crop_and_resize") return {};
  Taps taps = unbounded_taps(attrs, at);
  if (attrs.get_int("exclude_outside") && attrs.get_string("mode") != "nearest") {
    double sum = 0;
    for (Tap& tap : taps) {
      if (tap.index < 0 || tap.index >= axis.in) tap.weight = 0;
      sum += tap.weight;
    }
    for (Tap& tap : taps) tap.weight /= sum;
  }
  for (Tap& tap : taps) tap.index = std::clamp<int64_t>(tap.index, 0, axis.in - 1);
  return taps;
}

std::vector<Taps> taps_of_axis(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out, size_t d) {
  Axis axis{in[d], out[d], attrs.get_floats("scales")[d], 0, 1};
  if (coordinate_mode(attrs) == "tf_crop_and_resize") {
    axis.roi_start = attrs.get_floats("roi")[d];
    axis.roi_end = attrs.get_floats("roi")[in.size() + d];
  }
  std::vector<Taps> taps;
  for (int64_t k = 0; k < axis.out; ++k) taps.push_back(taps_at(attrs, axis, k));
  return taps;
}

// Does the axis stay as it is?
bool is_untouched(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out, size_t d) {
  bool whole = coordinate_mode(attrs) != "tf_crop_and_resize" ||
               (attrs.get_floats("roi")[d] == 0 && attrs.get_floats("roi")[in.size() + d] == 1);
  return whole && in[d] == out[d] && attrs.get_floats("scales")[d] == 1;
}

// ---- Inference ----

Status check_resize(const Attrs& attrs, int64_t rank, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out) {
  if (Status s = need_choice(attrs, "mode", {"nearest", "linear", "cubic"})) return s;
  if (Status s = need_choice(attrs, "coordinate", coordinate_modes)) return s;
  if (Status s = need_choice(attrs, "nearest", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})) return s;
  auto scales = static_cast<int64_t>(attrs.get_floats("scales").size());
  auto roi = static_cast<int64_t>(attrs.get_floats("roi").size());
  if (scales != rank)
    return model_error("scales has " + llvm::Twine(scales) + " entries, the rank is " + llvm::Twine(rank));
  if (coordinate_mode(attrs) == "tf_crop_and_resize" && roi != 2 * rank)
    return model_error("roi has " + llvm::Twine(roi) + " entries, it needs twice the rank " + llvm::Twine(rank));
  for (size_t d = 0; d < in.size(); ++d)
    if (in[d] < 1 || out[d] < 0 || !(attrs.get_floats("scales")[d] > 0))
      return model_error("dimension " + llvm::Twine(d) + " cannot go from " + llvm::Twine(in[d]) + " to " +
                         llvm::Twine(out[d]) + " by the scale " + std::to_string(attrs.get_floats("scales")[d]));
  return Status::success();
}

constexpr AttrSpecs resize_attrs{{"mode", AttrKind::String},
                                 {"sizes", AttrKind::Ints},
                                 {"scales", AttrKind::Floats},
                                 {"coordinate", "half_pixel"},
                                 {"nearest", "round_prefer_floor"},
                                 {"cubic_a", -0.75},
                                 {"exclude_outside", 0},
                                 {"extrapolation", 0.0},
                                 {"roi", AttrKind::Floats, AttrNeed::Optional}};

Result<Types> infer_resize(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  const Type& x = call["x"];
  llvm::ArrayRef<int64_t> sizes = call.get_ints("sizes");
  if (Status s = need_length(call.attrs, "sizes", x.rank())) return s;
  if (Status s = check_resize(call.attrs, x.rank(), x.shape, sizes)) return s;
  return one_result(x.dtype, sizes);
}

Result<Types> infer_resize_grad(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  const Type& dy = call["dy"];
  llvm::ArrayRef<int64_t> shape = call.get_ints("shape");
  if (Status s = need_type(call, "dy", Type(dy.dtype, call.get_ints("sizes")))) return s;
  if (Status s = need_length(call.attrs, "shape", dy.rank())) return s;
  if (Status s = check_resize(call.attrs, dy.rank(), shape, dy.shape)) return s;
  return one_result(dy.dtype, shape);
}

// ---- Reference ----

// One axis at a time; `shape` is that of the elements so far.
void resize_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  Shape shape = x.type.shape;
  const Shape &in = x.type.shape, &out = y.type.shape;
  std::vector<double> elements = all_elements(x);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (is_untouched(call.attrs, in, out, d)) continue;
    std::vector<Taps> taps = taps_of_axis(call.attrs, in, out, d);
    AxisView from = along_axis(shape, static_cast<int64_t>(d));
    shape[d] = out[d];
    AxisView to = along_axis(shape, static_cast<int64_t>(d));
    std::vector<double> resized(static_cast<size_t>(element_count(shape)));
    walk<1>({to.outer, to.length, to.inner}, {Shape{0, 0, 0}}, {}, [&](int64_t at, const auto&) {
      int64_t i = at % to.inner, k = at / to.inner % to.length, o = at / to.inner / to.length;
      double sum = taps[k].empty() ? call.get_float("extrapolation") : 0;
      for (const Tap& tap : taps[k]) sum += tap.weight * elements[from.at(o, tap.index, i)];
      resized[at] = sum;
    });
    elements = std::move(resized);
  }
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, elements[i]);
}

void resize_grad_reference(const ReferenceCall& call) {
  const TensorView &dy = call.in("dy"), &dx = call.out("dx");
  Shape shape = dy.type.shape;
  const Shape &in = dx.type.shape, &out = dy.type.shape;
  std::vector<double> elements = all_elements(dy);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (is_untouched(call.attrs, in, out, d)) continue;
    std::vector<Taps> taps = taps_of_axis(call.attrs, in, out, d);
    AxisView from = along_axis(shape, static_cast<int64_t>(d));
    shape[d] = in[d];
    AxisView to = along_axis(shape, static_cast<int64_t>(d));
    std::vector<double> sums(static_cast<size_t>(element_count(shape)), 0.0);
    for (int64_t o = 0; o < from.outer; ++o)
      for (int64_t k = 0; k < from.length; ++k)
        for (const Tap& tap : taps[k])
          for (int64_t i = 0; i < from.inner; ++i)
            sums[to.at(o, tap.index, i)] += tap.weight * elements[from.at(o, k, i)];
    elements = std::move(sums);
  }
  for (int64_t i = 0; i < dx.elements(); ++i) dx.set(i, elements[i]);
}

// ---- Gradients, cost, rebatching, samples ----

void resize_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  Attrs attrs = g.attrs();
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  g.add("x", apply("resize_grad", out_grad(g), attrs));
}

// The resampling is linear but for the extrapolation value, which takes no gradient.
void resize_grad_gradient(GradContext& g) {
  Attrs attrs = g.attrs();
  attrs.erase("shape");
  attrs.set("extrapolation", 0.0);
  g.add("dy", apply("resize", out_grad(g), attrs));
}

double resize_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  llvm::StringRef mode = call.get_string("mode");
  double taps = mode == "nearest" ? 1 : mode == "linear" ? 2 : 4, product = 1;
  for (double scale : call.attrs.get_floats("scales"))
    if (scale != 1) product *= taps;
  return 2 * product * static_cast<double>(std::max(results[0].elements(), call.operand(0).elements()));
}

// A dimension that follows the batch must be one that is not resampled.
Result<Attrs> resize_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  const Shape &from = before.operand(0).shape, &now = after[0]->shape;
  Attrs attrs = before.attrs;
  for (llvm::StringRef name : {"sizes", "shape"}) {
    if (!attrs.has(name)) continue;
    Ints sizes(attrs.get_ints(name).begin(), attrs.get_ints(name).end());
    for (size_t d = 0; d < from.size(); ++d) {
      if (now[d] == from[d]) continue;
      if (sizes[d] != from[d] || attrs.get_floats("scales")[d] != 1)
        return model_error("resamples dimension " + llvm::Twine(d) + ", which changes from " + llvm::Twine(from[d]) +
                           " to " + llvm::Twine(now[d]) + " with the batch");
      sizes[d] = now[d];
    }
    attrs.set(name, sizes);
  }
  return attrs;
}

std::optional<ChunkCall> resize_chunk(const OpCall& call, Chunk chunk) {
  const Attrs& attrs = call.attrs;
  if (attrs.has("roi") || attrs.get_floats("scales")[0] != 1 || attrs.get_ints("sizes")[0] != call["x"].shape[0])
    return std::nullopt;
  return with_chunk_of_shape(cut_operands(call, {"x"}), "sizes", chunk);
}

Attrs resampling(llvm::StringRef mode, llvm::StringRef coordinate, Ints sizes, Floats scales) {
  return {{"mode", mode.str()}, {"coordinate", coordinate.str()}, {"sizes", sizes}, {"scales", scales}};
}

Attrs floors(Ints sizes, Floats scales) {
  Attrs attrs = resampling("nearest", "asymmetric", std::move(sizes), std::move(scales));
  attrs.set("nearest", std::string("floor"));
  return attrs;
}

std::vector<Sample> resize_samples() {
  Attrs cubic = resampling("cubic", "half_pixel", {1, 7, 2}, {1, 1.75, 0.5});
  cubic.set("exclude_outside", 1);
  Attrs crop = resampling("linear", "tf_crop_and_resize", {4, 3}, {1.0, 1.0});
  crop.set("roi", Floats{0.2, -0.3, 0.9, 0.7});
  crop.set("extrapolation", 2.5);
  Attrs rounded = resampling("nearest", "half_pixel_symmetric", {2, 5}, {1, 1.3});
  rounded.set("nearest", std::string("ceil"));
  return {{{normal({1, 2, 2, 3})}, resampling("nearest", "asymmetric", {1, 2, 4, 6}, {1, 1, 2, 2})},
          {{normal({1, 2, 3, 4})}, resampling("linear", "half_pixel", {1, 2, 6, 3}, {1, 1, 2, 0.75})},
          {{normal({2, 4})}, resampling("linear", "align_corners", {2, 7}, {1, 1.75})},
          {{normal({1, 4, 4})}, cubic},
          {{normal({4, 5})}, crop},
          {{normal({2, 4})}, rounded},
          // Channels last, whole accesses of them; lines of such; an image from one element; volumes.
          {{normal({1, 3, 4, 8})}, resampling("linear", "half_pixel", {1, 6, 9, 8}, {1, 2, 2.25, 1})},
          {{normal({1, 2, 3, 16})}, resampling("cubic", "half_pixel", {1, 2, 5, 64}, {1, 1, 5.0 / 3, 4})},
          {{normal({1, 1, 1, 4})}, resampling("linear", "half_pixel", {1, 34, 2, 4}, {1, 34, 2, 1})},
          {{normal({1, 2, 2, 3})}, resampling("linear", "align_corners", {1, 4, 5, 6}, {1, 2, 2.5, 2})},
          // Sixteen channels and more: whole accesses, halves and pairs; few pixels that many give to.
          {{normal({2, 3, 4, 24})}, resampling("linear", "align_corners", {2, 7, 9, 24}, {1, 7 / 3.0, 2.25, 1})},
          {{normal({2, 9, 8, 20})}, resampling("cubic", "half_pixel", {2, 4, 13, 20}, {1, 4 / 9.0, 1.625, 1})},
          {{normal({1, 2, 2, 2, 18})}, resampling("linear", "half_pixel", {1, 20, 18, 4, 18}, {1, 10, 9, 2, 1})},
          {{normal({3, 5, 17})}, resampling("nearest", "asymmetric", {3, 7, 17}, {1, 1.4, 1})},
          // Whole repetitions: pixels of whole accesses, of parts of one, odd ones; down alone; rounded to the nearest.
          {{normal({2, 3, 4, 16})}, floors({2, 6, 8, 16}, {1, 2, 2, 1})},
          {{normal({2, 7, 4, 18})}, floors({2, 14, 16, 18}, {1, 2, 4, 1})},
          {{normal({3, 5, 3, 3})}, floors({3, 10, 9, 3}, {1, 2, 3, 1})},
          {{normal({2, 3, 5})}, floors({2, 24, 5}, {1, 8, 1})},
          {{normal({2, 3, 4, 6})}, resampling("nearest", "half_pixel", {2, 3, 12, 12}, {1, 1, 3, 2})}};
}

std::vector<Sample> resize_grad_samples() {
  std::vector<Sample> list = resize_samples();
  for (Sample& sample : list) {
    Shape& shape = sample.operands[0].type.shape;
    sample.attrs.set("shape", Ints(shape.begin(), shape.end()));
    llvm::ArrayRef<int64_t> sizes = sample.attrs.get_ints("sizes");
    shape.assign(sizes.begin(), sizes.end());
  }
  return list;
}

}  // namespace

constinit const OpDef op_resize{
    .name = "resize",
    .summary =
        "x resampled to {sizes} {mode=nearest|linear|cubic} {scales, coordinate, nearest, cubic_a, "
        "exclude_outside, extrapolation, roi} as in ONNX",
    .attrs = resize_attrs,
    .infer = infer_resize,
    .gradient = Gradient::rule(resize_gradient),
    .dim_order = DimOrder::Lists,
    .flops = resize_flops,
    .attrs_for_batch = resize_for_batch,
    .chunk = resize_chunk,
    .linear = {"?"},
    .reference = resize_reference,
    .samples = resize_samples,
};

constinit const OpDef op_resize_grad{
    .name = "resize_grad",
    .summary =
        "dy spread by resize's weights over the elements it read, of {shape}; the other attributes are "
        "resize's",
    .operands = {"dy"},
    .results = {"dx"},
    .attrs = resize_attrs.with({{"shape", AttrKind::Ints}}),
    .infer = infer_resize_grad,
    .gradient = Gradient::rule(resize_grad_gradient),
    .flops = resize_flops,
    .attrs_for_batch = resize_for_batch,
    .linear = {"sum(dy)"},
    .reference = resize_grad_reference,
    .samples = resize_grad_samples,
};

}  // namespace plimsoll
