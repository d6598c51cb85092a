// Images sampled where a grid says: grid[n, ..., 0] is the column and grid[n, ..., 1] the row, -1 and 1 being the
// image's ends, as in ONNX GridSample and PyTorch's grid_sample. Channels stand last, so that a sample reads whole runs
// of them. Places outside the image, and those that are no number, read zeros or what {padding} moves them to: no grid
// is an error.

#include "ir/ops/common/expr.h"
#include "ir/ops/common/reference_math.h"

#include <cmath>

namespace plimsoll {
namespace {

constexpr AttrSpecs sampling_attrs{{"mode", "linear"}, {"padding", "zeros"}, {"align_corners", 0}};

// ---- Inference ----

Status check_sampling(const OpCall& call, llvm::ArrayRef<int64_t> image) {
  if (Status s = need_choice(call.attrs, "mode", {"linear", "nearest"})) return s;
  if (Status s = need_choice(call.attrs, "padding", {"zeros", "border", "reflection"})) return s;
  if (Status s = need_float(call, "grid")) return s;
  if (Status s = need_rank(call, "grid", 4)) return s;
  const Shape& grid = call["grid"].shape;
  if (image.size() != 4 || image[0] != grid[0] || grid[3] != 2 || image[1] < 1 || image[2] < 1)
    return model_error("needs images [N, H, W, C] and a grid [N, rows, columns, 2], got " + to_string(image) + " and " +
                       to_string(call["grid"]));
  return Status::success();
}

Shape sampled_shape(llvm::ArrayRef<int64_t> image, llvm::ArrayRef<int64_t> grid) {
  return {grid[0], grid[1], grid[2], image[3]};
}

Result<Types> infer_grid_sample(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  const Type& x = call["x"];
  if (Status s = check_sampling(call, x.shape)) return s;
  return one_result(x.dtype, sampled_shape(x.shape, call["grid"].shape));
}

Result<Types> infer_grid_sample_dx(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  const llvm::ArrayRef<int64_t> image = call.get_ints("shape");
  if (Status s = check_sampling(call, image)) return s;
  const DType dtype = call["dy"].dtype;
  if (Status s = need_type(call, "dy", Type(dtype, sampled_shape(image, call["grid"].shape)))) return s;
  return one_result(dtype, image);
}

Result<Types> infer_grid_sample_dgrid(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  const Type &x = call["x"], &grid = call["grid"];
  if (Status s = check_sampling(call, x.shape)) return s;
  if (Status s = need_type(call, "dy", Type(x.dtype, sampled_shape(x.shape, grid.shape)))) return s;
  return one_result(grid.dtype, grid.shape);
}

// ---- Reference ----

// A place along one dimension in pixels, and its slope by the coordinate.
struct Place {
  double at, slope;
};

Place place_of(const OpCall& call, double coordinate, int64_t size) {
  const bool ends_are_centres = call.get_int("align_corners") != 0;
  const auto all = static_cast<double>(size), last = static_cast<double>(size - 1);
  const double scale = (ends_are_centres ? last : all) / 2, low = ends_are_centres ? 0 : -0.5;
  Place place{(coordinate + 1) * scale + low, scale};
  if (call.get_string("padding") == "zeros") return place;
  if (call.get_string("padding") == "reflection") {
    const double span = 2 * scale, distance = std::fabs(place.at - low);
    if (place.at < low) place.slope = -place.slope;
    const double folds = span > 0 ? std::floor(distance / span) : 0, rest = distance - folds * span;
    const bool comes_back = std::fmod(folds, 2) != 0;
    place = comes_back ? Place{low + span - rest, -place.slope} : Place{low + rest, place.slope};
  }
  if (!(place.at > 0)) return {0, 0};
  return place.at >= last ? Place{last, 0} : place;
}

struct Tap {
  int64_t index;
  double weight, slope;
};
using Taps = llvm::SmallVector<Tap, 2>;

// The pixels inside the image that a place reads.
Taps taps_at(const OpCall& call, double coordinate, int64_t size) {
  const Place place = place_of(call, coordinate, size);
  const bool is_near = place.at > -1 && place.at < static_cast<double>(size);
  if (!is_near) return {};
  Taps taps;
  const auto add = [&](double index, double weight, double slope) {
    if (index >= 0 && index < static_cast<double>(size)) taps.push_back({static_cast<int64_t>(index), weight, slope});
  };
  if (call.get_string("mode") == "nearest") {
    add(std::nearbyint(place.at), 1, 0);
    return taps;
  }
  const double low = std::floor(place.at), share = place.at - low;
  add(low, 1 - share, -place.slope);
  add(low + 1, share, place.slope);
  return taps;
}

// visit(sample, pixel, row tap, column tap) for everything that is read: sample and pixel count runs of channels.
template <typename Visit>
void for_each_tap(const ReferenceCall& call, llvm::ArrayRef<int64_t> image, Visit visit) {
  const TensorView& grid = call.in("grid");
  const int64_t height = image[1], width = image[2], samples = grid.elements() / 2;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t n = sample / (grid.type.shape[1] * grid.type.shape[2]);
    const Taps columns = taps_at(call, grid.get(2 * sample), width),
               rows = taps_at(call, grid.get(2 * sample + 1), height);
    for (const Tap& row : rows)
      for (const Tap& column : columns) visit(sample, (n * height + row.index) * width + column.index, row, column);
  }
}

void grid_sample_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x");
  std::vector<double> y(static_cast<size_t>(call.out("y").elements()));
  const int64_t channels = call["x"].shape[3];
  for_each_tap(call, call["x"].shape, [&](int64_t sample, int64_t pixel, const Tap& row, const Tap& column) {
    for (int64_t c = 0; c < channels; ++c)
      y[sample * channels + c] += row.weight * column.weight * x[pixel * channels + c];
  });
  call.store(y, "y");
}

void grid_sample_dx_reference(const ReferenceCall& call) {
  const std::vector<double> dy = call.load("dy");
  std::vector<double> dx(static_cast<size_t>(call.out("dx").elements()));
  const Shape& image = call.out("dx").type.shape;
  const int64_t channels = image[3];
  for_each_tap(call, image, [&](int64_t sample, int64_t pixel, const Tap& row, const Tap& column) {
    for (int64_t c = 0; c < channels; ++c)
      dx[pixel * channels + c] += row.weight * column.weight * dy[sample * channels + c];
  });
  call.store(dx, "dx");
}

void grid_sample_dgrid_reference(const ReferenceCall& call) {
  const std::vector<double> x = call.load("x"), dy = call.load("dy");
  std::vector<double> dgrid(static_cast<size_t>(call.out("dgrid").elements()));
  const int64_t channels = call["x"].shape[3];
  for_each_tap(call, call["x"].shape, [&](int64_t sample, int64_t pixel, const Tap& row, const Tap& column) {
    double product = 0;
    for (int64_t c = 0; c < channels; ++c) product += x[pixel * channels + c] * dy[sample * channels + c];
    dgrid[2 * sample] += row.weight * column.slope * product;
    dgrid[2 * sample + 1] += row.slope * column.weight * product;
  });
  call.store(dgrid, "dgrid");
}

// ---- Gradients, cost, chunks, samples ----

Attrs with_shape(const Attrs& from, llvm::ArrayRef<int64_t> shape) {
  Attrs attrs = from;
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  return attrs;
}

Attrs without_shape(const Attrs& from) {
  Attrs attrs = from;
  attrs.erase("shape");
  return attrs;
}

void grid_sample_gradient(GradContext& g) {
  const Shape image = g.type(g["x"]).shape;
  if (g.wants("x")) g.add("x", g.b.emit("grid_sample_dx", {g["grid"], g.out_grad()}, with_shape(g.attrs(), image)));
  if (g.wants("grid")) g.add("grid", g.b.emit("grid_sample_dgrid", {g["x"], g["grid"], g.out_grad()}, g.attrs()));
}

// dx is linear in dy, and by the grid it changes as samples of the gradient would.
void grid_sample_dx_gradient(GradContext& g) {
  const Attrs attrs = without_shape(g.attrs());
  if (g.wants("dy")) g.add("dy", g.b.emit("grid_sample", {g.out_grad(), g["grid"]}, attrs));
  if (g.wants("grid")) g.add("grid", g.b.emit("grid_sample_dgrid", {g.out_grad(), g["grid"], g["dy"]}, attrs));
}

double sampling_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& sampled = &call.op == &op_grid_sample ? results[0] : call["dy"];
  return (call.get_string("mode") == "nearest" ? 1 : 8) * static_cast<double>(sampled.elements());
}

std::optional<ChunkCall> grid_sample_chunk(const OpCall& call, Chunk) { return cut_operands(call, {"x", "grid"}); }
std::optional<ChunkCall> grid_sample_dx_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_shape(cut_operands(call, {"grid", "dy"}), "shape", chunk);
}
std::optional<ChunkCall> grid_sample_dgrid_chunk(const OpCall& call, Chunk) {
  return cut_operands(call, {"x", "grid", "dy"});
}

Attrs sampling(llvm::StringRef mode, llvm::StringRef padding, int64_t align_corners) {
  return {{"mode", mode.str()}, {"padding", padding.str()}, {"align_corners", align_corners}};
}

std::vector<Sample> grid_sample_samples() {
  using namespace samples;
  return {
      {{normal({2, 4, 5, 3}), normal({2, 3, 2, 2})}, sampling("linear", "zeros", 0)},
      {{normal({1, 3, 4, 8}), normal({1, 2, 5, 2})}, sampling("linear", "border", 1)},
      {{normal({2, 5, 3, 4}), normal({2, 2, 3, 2})}, sampling("linear", "reflection", 0)},
      {{normal({1, 3, 6, 2}), normal({1, 1, 9, 2})}, sampling("linear", "reflection", 1)},
      {{normal({2, 4, 3, 5}), normal({2, 2, 2, 2})}, sampling("nearest", "zeros", 1)},
      {{normal({1, 4, 4, 8}), normal({1, 3, 3, 2})}, sampling("nearest", "reflection", 0)},
      // One pixel; places far outside and such that are no number.
      {{normal({1, 1, 1, 2}), unit({1, 2, 3, 2})}, sampling("linear", "zeros", 0)},
      {{normal({1, 2, 3, 4}), fixed(values({1, 1, 4, 2}, {1e30, 0.1, NAN, -INFINITY, -3e9, 5e9, 0.3, -0.4}))},
       sampling("linear", "border", 0)},
      {{normal({1, 2, 3, 4}), fixed(values({1, 1, 4, 2}, {1e30, 0.1, NAN, -INFINITY, -3e9, 5e9, 0.3, -0.4}))},
       sampling("linear", "zeros", 0)},
      // Many samples of each pixel; more pixels than samples; wide and narrow runs of channels.
      {{fixed(normal({2, 9, 8, 32}, DType::BF16)), fixed(unit({2, 40, 41, 2}))}, sampling("linear", "zeros", 0)},
      {{fixed(normal({1, 20, 18, 8}, DType::F16)), fixed(normal({1, 8, 9, 2}))}, sampling("linear", "border", 0)},
      {{fixed(normal({2, 6, 7, 320}, DType::BF16)), fixed(normal({2, 5, 9, 2}))}, sampling("linear", "reflection", 0)},
      {{fixed(normal({2, 5, 7, 33})), fixed(normal({2, 30, 9, 2}))}, sampling("linear", "zeros", 1)},
      {{fixed(normal({1, 5, 7, 6}, DType::F16)), fixed(unit({1, 7, 9, 2}, DType::F16))},
       sampling("nearest", "border", 1)}};
}

// Of the images' samples: operands `order` of x, grid and dy, which has x's type at the grid's places.
std::vector<Sample> gradient_samples(std::initializer_list<size_t> order, bool has_shape) {
  std::vector<Sample> list = grid_sample_samples();
  for (Sample& sample : list) {
    SampleOperand dy = sample.operands[0];
    const Shape image = sample.operands[0].type.shape;
    dy.type.shape = sampled_shape(image, sample.operands[1].type.shape);
    sample.operands.push_back(dy);
    if (has_shape) sample.attrs = with_shape(sample.attrs, image);
    llvm::SmallVector<SampleOperand, 4> operands;
    for (size_t i : order) operands.push_back(sample.operands[i]);
    sample.operands = operands;
  }
  return list;
}
std::vector<Sample> grid_sample_dx_samples() { return gradient_samples({1, 2}, true); }
std::vector<Sample> grid_sample_dgrid_samples() { return gradient_samples({0, 1, 2}, false); }

}  // namespace

constinit const OpDef op_grid_sample{
    .name = "grid_sample",
    .summary =
        "y[N, rows, columns, C]: x[N, H, W, C] where grid[N, rows, columns, 2] says, -1 to 1 from end to end, "
        "{mode=linear|nearest} {padding=zeros|border|reflection} {align_corners}",
    .operands = {"x", "grid"},
    .attrs = sampling_attrs,
    .infer = infer_grid_sample,
    .gradient = Gradient::rule(grid_sample_gradient),
    .precision = Precision::Low,
    .exact = "grid",
    .flops = sampling_flops,
    .chunk = grid_sample_chunk,
    .linear = {"sum(x)"},
    .reference = grid_sample_reference,
    .samples = grid_sample_samples,
};

constinit const OpDef op_grid_sample_dx{
    .name = "grid_sample_dx",
    .summary = "dy added, by the weights of grid_sample, to the pixels of {shape} that its samples read",
    .operands = {"grid", "dy"},
    .results = {"dx"},
    .attrs = sampling_attrs.with({{"shape", AttrKind::Ints}}),
    .infer = infer_grid_sample_dx,
    .gradient = Gradient::rule(grid_sample_dx_gradient),
    .exact = "grid",
    .flops = sampling_flops,
    .attrs_for_batch = shape_attr_for_batch,
    .chunk = grid_sample_dx_chunk,
    .linear = {"sum(dy)"},
    .reference = grid_sample_dx_reference,
    .samples = grid_sample_dx_samples,
};

constinit const OpDef op_grid_sample_dgrid{
    .name = "grid_sample_dgrid",
    .summary = "what the places of grid_sample change: the slope of x at them, times dy, over the channels",
    .operands = {"x", "grid", "dy"},
    .results = {"dgrid"},
    .attrs = sampling_attrs,
    .infer = infer_grid_sample_dgrid,
    .gradient = no_second_derivative,
    .exact = "grid",
    .flops = sampling_flops,
    .chunk = grid_sample_dgrid_chunk,
    .linear = {"sum(x * dy)"},
    .reference = grid_sample_dgrid_reference,
    .samples = grid_sample_dgrid_samples,
};

}  // namespace plimsoll
