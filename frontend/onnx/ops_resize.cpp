#include "frontend/onnx/import_rows.h"
#include "ir/support/strings.h"

// Imports resizing by interpolation.

namespace plimsoll {
namespace {

// Returns sizes and scales of all dimensions from those that the node gives.
struct Resampling {
  Ints sizes;
  Floats scales;
};

Resampling read_resampling(NodeContext& n, ValueId x, size_t scales_at, size_t sizes_at) {
  const Shape shape = n.shape(x);
  Resampling r{Ints(shape.begin(), shape.end()), Floats(shape.size(), 1.0)};
  Ints axes = n.axes_or_all(n.attr_ints("axes"), x);
  Floats scales = n.has(scales_at) ? n.known_floats(scales_at, "scales") : Floats();
  Ints sizes = n.has(sizes_at) ? n.known_ints(sizes_at, "sizes") : Ints();
  if (scales.empty() == sizes.empty()) n.fail("needs either scales or sizes");
  if (std::max(scales.size(), sizes.size()) != axes.size())
    n.fail("has " + llvm::Twine(std::max(scales.size(), sizes.size())) + " sizes for " + llvm::Twine(axes.size()) +
           " axes");
  for (double scale : scales)
    if (!(scale > 0 && scale < 1e6)) n.fail("a scale is " + std::to_string(scale));
  for (size_t i = 0; i < sizes.size() && !n.failed(); ++i)
    if (shape[axes[i]] < 1 || sizes[i] < 1) n.fail("cannot resize " + to_string(shape) + " to " + to_string(sizes));
  std::string policy = n.attr_string("keep_aspect_ratio_policy", "stretch");
  if (n.failed()) return r;
  if (!sizes.empty()) {
    for (size_t i = 0; i < axes.size(); ++i) scales.push_back(double(sizes[i]) / double(shape[axes[i]]));
    if (policy != "stretch") {
      double one = policy == "not_larger" ? *std::min_element(scales.begin(), scales.end())
                                          : *std::max_element(scales.begin(), scales.end());
      for (size_t i = 0; i < axes.size(); ++i) {
        scales[i] = one;
        sizes[i] = static_cast<int64_t>(std::floor(one * double(shape[axes[i]]) + 0.5));
      }
    }
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    r.scales[axes[i]] = scales[i];
    r.sizes[axes[i]] = sizes.empty() ? static_cast<int64_t>(std::floor(double(shape[axes[i]]) * scales[i])) : sizes[i];
  }
  return r;
}

// Returns the region of interest, all begins and then all ends; the default is the whole tensor.
Floats read_roi(NodeContext& n, ValueId x) {
  Floats given = n.has(1) ? n.known_floats(1, "region of interest") : Floats();
  auto rank = static_cast<size_t>(n.rank(x));
  Floats roi(rank, 0.0);
  roi.resize(2 * rank, 1.0);
  Ints axes = n.axes_or_all(n.attr_ints("axes"), x);
  if (given.size() != 2 * axes.size()) return roi;
  for (size_t i = 0; i < axes.size(); ++i) {
    roi[axes[i]] = given[i];
    roi[axes[i] + rank] = given[i + axes.size()];
  }
  return roi;
}

// ONNX aligns the corners of a grid of in * scale points, which need not be an integer; ours has one point per element.
// The difference is a scale from the origin.
void align_fractional_corners(NodeContext& n, ValueId x, Resampling& r, std::string& coordinate) {
  auto points = [&](size_t axis) { return double(n.dim(x, static_cast<int64_t>(axis))) * r.scales[axis]; };
  bool whole = true;
  for (size_t axis = 0; axis < r.scales.size(); ++axis) whole &= std::abs(points(axis) - double(r.sizes[axis])) < 1e-4;
  if (coordinate != "align_corners" || whole) return;
  coordinate = "asymmetric";
  for (size_t axis = 0; axis < r.scales.size(); ++axis) {
    auto last = static_cast<double>(n.dim(x, static_cast<int64_t>(axis)) - 1);
    if (last > 0 && points(axis) != 1) r.scales[axis] = (points(axis) - 1) / last;
  }
}

// Shrinking with antialias widens the kernel by the scale, as Pillow does. Each dimension becomes a matmul with a
// constant matrix of weights.
double kernel_weight(bool cubic, double a, double distance) {
  double x = std::abs(distance);
  if (!cubic) return std::max(0.0, 1 - x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

struct Smoothing {
  bool cubic, exclude_outside;
  double cubic_a;
  std::string coordinate;
};

double source_position(const Smoothing& how, int64_t k, double scale, double in, double out) {
  double at = static_cast<double>(k);
  if (how.coordinate == "align_corners") return scale * in == 1 ? 0 : at * (in - 1) / (scale * in - 1);
  if (how.coordinate == "asymmetric") return at / scale;
  if (how.coordinate == "pytorch_half_pixel" && out == 1) return -0.5;
  double offset = how.coordinate == "half_pixel_symmetric" ? in / 2 * (1 - out / (scale * in)) : 0;
  return offset + (at + 0.5) / scale - 0.5;
}

// The matrix is [out, in]; row k has the weights of element k.
Tensor smoothing_matrix(const Smoothing& how, int64_t in, int64_t out, double scale, DType dtype) {
  Tensor matrix(Type(dtype, {out, in}));
  double shrink = std::min(scale, 1.0), reach = (how.cubic ? 2 : 1) / shrink;
  for (int64_t k = 0; k < out; ++k) {
    double at = source_position(how, k, scale, static_cast<double>(in), static_cast<double>(out)), sum = 0;
    std::vector<double> weights(static_cast<size_t>(in), 0.0);
    for (auto i = static_cast<int64_t>(std::ceil(at - reach)); static_cast<double>(i) <= at + reach; ++i) {
      if (how.exclude_outside && (i < 0 || i >= in)) continue;
      double weight = kernel_weight(how.cubic, how.cubic_a, (static_cast<double>(i) - at) * shrink);
      weights[std::clamp<int64_t>(i, 0, in - 1)] += weight;
      sum += weight;
    }
    for (int64_t i = 0; i < in; ++i) matrix.view().set(k * in + i, weights[i] / sum);
  }
  return matrix;
}

ValueId emit_smoothed(NodeContext& n, ValueId x, const Resampling& r, const std::string& coordinate) {
  if (starts_with(coordinate, "tf_")) n.fail("antialias with " + coordinate + " is not supported");
  Smoothing how{n.attr_string("mode", "nearest") == "cubic", n.attr_int("exclude_outside", 0) != 0,
                n.attr_float("cubic_coeff_a", -0.75), coordinate};
  for (int64_t axis = 0; axis < n.rank(x) && !n.failed(); ++axis) {
    int64_t in = n.dim(x, axis), out = r.sizes[axis];
    if (in == out && r.scales[axis] == 1) continue;
    Ints swap = n.all_axes(x);
    std::swap(swap[axis], swap.back());
    ValueId matrix = n.constant_value(smoothing_matrix(how, in, out, r.scales[axis], n.type(x).dtype));
    ValueId y = n.emit("linear", {n.transpose(x, swap), matrix}, {{"transpose_w", 1}});
    x = n.transpose(y, swap);
  }
  return x;
}

void import_resize(NodeContext& n) {
  ValueId x = n.input(0);
  Resampling r = read_resampling(n, x, 2, 3);
  std::string coordinate = n.attr_string("coordinate_transformation_mode", "half_pixel");
  if (n.attr_int("antialias", 0) && n.attr_string("mode", "nearest") != "nearest")
    return n.output(0, emit_smoothed(n, x, r, coordinate));
  if (!n.failed()) align_fractional_corners(n, x, r, coordinate);
  Attrs attrs{{"mode", n.attr_string("mode", "nearest")},
              {"sizes", r.sizes},
              {"scales", r.scales},
              {"coordinate", coordinate},
              {"nearest", n.attr_string("nearest_mode", "round_prefer_floor")},
              {"cubic_a", n.attr_float("cubic_coeff_a", -0.75)},
              {"exclude_outside", n.attr_int("exclude_outside", 0)},
              {"extrapolation", n.attr_float("extrapolation_value", 0)}};
  if (coordinate == "tf_crop_and_resize") attrs.set("roi", read_roi(n, x));
  n.output(0, n.emit("resize", {x}, attrs));
}

// Before opset 11 Resize has fewer options.
void emit_upsample(NodeContext& n, const Resampling& r, llvm::StringRef mode) {
  n.output(0, n.emit("resize", {n.input(0)},
                     {{"mode", mode.str()},
                      {"sizes", r.sizes},
                      {"scales", r.scales},
                      {"coordinate", "asymmetric"},
                      {"nearest", "floor"}}));
}

void import_upsample(NodeContext& n) {
  Resampling r = read_resampling(n, n.input(0), 1, n.input_count());
  emit_upsample(n, r, n.attr_string("mode", "nearest"));
}

constexpr ImportRow resize_table[] = {
    {"Resize", 10, import_upsample},
    {"Resize", 11, import_resize},
    {"Upsample", 9, import_upsample},
};

}  // namespace

llvm::ArrayRef<ImportRow> resize_rows() { return resize_table; }

}  // namespace plimsoll
