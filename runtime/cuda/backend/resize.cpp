#include "kernels/cuda/resize/resize.h"
#include "kernels/cuda/resize/grid_sample.h"
#include "kernels/cuda/resize/repeats.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/resize.h"

namespace plimsoll {
namespace {

cuda::ResizedAxis axis_of(llvm::StringRef coordinate, int64_t in, int64_t out, double scale) {
  cuda::ResizedAxis axis{.in = in, .out = out};
  const auto from = static_cast<double>(in), to = static_cast<double>(out);
  if (coordinate == "align_corners") {
    axis.factor = out == 1 ? 0 : from - 1;
    axis.divisor = out == 1 ? 1 : to - 1;
    return axis;
  }
  if (coordinate == "pytorch_half_pixel" && out == 1) {
    axis.factor = 0;
    return axis;
  }
  axis.divisor = scale;
  if (coordinate == "asymmetric") return axis;
  axis.shift = 0.5;
  if (coordinate == "tf_half_pixel_for_nn") return axis;
  axis.back = 0.5;
  if (coordinate == "half_pixel_symmetric") axis.offset = from / 2 * (1 - to / (scale * from));
  return axis;
}

cuda::Interpolation interpolation_of(llvm::StringRef mode) {
  if (mode == "nearest") return cuda::Interpolation::Nearest;
  return mode == "linear" ? cuda::Interpolation::Linear : cuda::Interpolation::Cubic;
}

cuda::NearestRounding rounding_of(llvm::StringRef nearest) {
  if (nearest == "floor") return cuda::NearestRounding::Floor;
  if (nearest == "ceil") return cuda::NearestRounding::Ceil;
  return nearest == "round_prefer_ceil" ? cuda::NearestRounding::PreferCeil : cuda::NearestRounding::PreferFloor;
}

cuda::ResizeShape resize_of(const OpCall& call, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out) {
  const llvm::ArrayRef<double> scales = call.attrs.get_floats("scales");
  cuda::ResizeShape shape{.interpolation = interpolation_of(call.get_string("mode")),
                          .rounding = rounding_of(call.get_string("nearest")),
                          .cubic_a = call.get_float("cubic_a"),
                          .exclude_outside = call.get_int("exclude_outside") != 0};
  int first = cuda::max_resized_axes;  // the first axis so far, from the last dimension on
  for (size_t d = in.size(); d-- > 0;) {
    if (in[d] != out[d] || scales[d] != 1)
      shape.axes[--first] = axis_of(call.get_string("coordinate"), in[d], out[d], scales[d]);
    else
      (first == 0 ? shape.outer : shape.inner[first - 1]) *= in[d];
  }
  return shape;
}

Status launch_resize(const CudaCall& k) {
  const cuda::ResizeShape shape = resize_of(k.call, k.in_shape("x"), k.out_shape("y"));
  return launched(k, cuda::resize(shape, k.in_scalar("x"), k.out("y"), k.in("x"), k.workspace, k.stream));
}

Status launch_resize_grad(const CudaCall& k) {
  const cuda::ResizeShape shape = resize_of(k.call, k.out_shape("dx"), k.in_shape("dy"));
  return launched(k, cuda::resize_grad(shape, k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.workspace, k.stream));
}

Status launch_resize_channels(const CudaCall& k) {
  const cuda::ResizeShape shape = resize_of(k.call, k.in_shape("x"), k.out_shape("y"));
  return launched(k, cuda::resize_channels(shape, k.in_scalar("x"), k.out("y"), k.in("x"), k.workspace, k.stream));
}

Status launch_resize_grad_channels(const CudaCall& k) {
  const cuda::ResizeShape shape = resize_of(k.call, k.out_shape("dx"), k.in_shape("dy"));
  return launched(k,
                  cuda::resize_grad_channels(shape, k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.workspace, k.stream));
}

cuda::Repeats repeats_of(const OpCall& call, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const Repetitions repeats = *repetitions_of(call, x, y);
  return {.lines = element_count(x.take_front(repeats.axis)),
          .width = x[repeats.axis],
          .inner = element_count(x.drop_front(repeats.axis + 1)),
          .down = static_cast<int>(repeats.down),
          .across = static_cast<int>(repeats.across)};
}

Status launch_repeat(const CudaCall& k) {
  const cuda::Repeats shape = repeats_of(k.call, k.in_shape("x"), k.out_shape("y"));
  return launched(k, cuda::repeat(shape, k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}

Status launch_sum_repeats(const CudaCall& k) {
  const cuda::Repeats shape = repeats_of(k.call, k.out_shape("dx"), k.in_shape("dy"));
  return launched(k, cuda::sum_repeats(shape, k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.stream));
}

cuda::GridSamples samples_of(const CudaCall& k, llvm::ArrayRef<int64_t> image) {
  const llvm::ArrayRef<int64_t> grid = k.in_shape("grid");
  const llvm::StringRef padding = k.call.get_string("padding");
  return {image[0],
          image[1],
          image[2],
          image[3],
          grid[1] * grid[2],
          k.call.get_string("mode") == "nearest" ? cuda::SampledAs::Nearest : cuda::SampledAs::Linear,
          padding == "zeros"    ? cuda::SampledOutside::Zeros
          : padding == "border" ? cuda::SampledOutside::Border
                                : cuda::SampledOutside::Reflection,
          k.call.get_int("align_corners") != 0,
          k.in_scalar("grid")};
}

Status launch_grid_sample(const CudaCall& k) {
  const cuda::GridSamples shape = samples_of(k, k.in_shape("x"));
  return launched(k, cuda::grid_sample(shape, k.in_scalar("x"), k.out("y"), k.in("x"), k.in("grid"), k.stream));
}

Status launch_grid_sample_dx(const CudaCall& k) {
  const cuda::GridSamples shape = samples_of(k, k.out_shape("dx"));
  return launched(
      k, cuda::grid_sample_dx(shape, k.in_scalar("dy"), k.out("dx"), k.in("grid"), k.in("dy"), k.workspace, k.stream));
}

Status launch_grid_sample_dgrid(const CudaCall& k) {
  const cuda::GridSamples shape = samples_of(k, k.in_shape("x"));
  return launched(k, cuda::grid_sample_dgrid(shape, k.in_scalar("x"), k.out("dgrid"), k.in("x"), k.in("grid"),
                                             k.in("dy"), k.stream));
}

constexpr CudaLauncher resize_table[] = {
    {op_resize, "repeats", launch_repeat},
    {op_resize, "channels", launch_resize_channels},
    {op_resize, "gather", launch_resize},
    {op_resize_grad, "repeats", launch_sum_repeats},
    {op_resize_grad, "channels", launch_resize_grad_channels},
    {op_resize_grad, "gather", launch_resize_grad},
    {op_grid_sample, "runs", launch_grid_sample},
    {op_grid_sample_dx, "ordered", launch_grid_sample_dx},
    {op_grid_sample_dgrid, "runs", launch_grid_sample_dgrid},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> resize_launchers() { return resize_table; }

}  // namespace plimsoll
