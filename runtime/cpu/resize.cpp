#include "runtime/kernels/resize.h"
#include "ir/support/align.h"
#include "kernels/cpu/resize/grid_sample.h"
#include "kernels/cpu/resize/resample.h"
#include "runtime/cpu/kernels.h"

#include <algorithm>

// Samples at the places of a grid; resize and its gradient, one axis after another. The weights along an axis are not
// worked out a second time here: the op's reference, given the unit vectors of that axis, says them.

namespace plimsoll {
namespace {

// Shapes of x, of what each pass makes, and so of y in the end.
llvm::SmallVector<Shape, 4> shapes_of_passes(const Attrs& attrs, llvm::ArrayRef<int64_t> in,
                                             llvm::ArrayRef<int64_t> out) {
  llvm::SmallVector<Shape, 4> shapes{Shape(in.begin(), in.end())};
  for (size_t d : resized_axes(attrs, in, out)) {
    shapes.push_back(shapes.back());
    shapes.back()[d] = out[d];
  }
  return shapes;
}

Result<cpu::AxisTaps> taps_of_axis(const Attrs& attrs, int64_t in, int64_t out, double scale) {
  Attrs probe = attrs;
  probe.erase("shape");
  probe.erase("roi");
  probe.set("sizes", Ints{in, out});
  probe.set("scales", Floats{1, scale});
  Tensor unit(Type(DType::F32, {in, in})), weights(Type(DType::F32, {in, out}));
  for (int64_t i = 0; i < in; ++i) unit.view().as<float>()[i * in + i] = 1;
  const Type* operand = &unit.type();
  const OpDef& op = get_op("resize");
  if (Status s = op.reference(ReferenceCall(OpCall(op, probe, operand), unit.view(), weights.view()))) return s;
  cpu::AxisTaps taps{.in = in, .out = out};
  const float* weight = weights.view().as<float>();
  for (int64_t k = 0; k < out; ++k) {
    int64_t count = 0;
    for (int64_t i = 0; i < in; ++i) count += weight[i * out + k] != 0;
    taps.taps = std::max(taps.taps, count);
  }
  for (int64_t k = 0; k < out; ++k) {
    for (int64_t i = 0; i < in; ++i) {
      if (weight[i * out + k] == 0) continue;
      taps.index.push_back(i);
      taps.weight.push_back(weight[i * out + k]);
    }
    taps.index.resize((k + 1) * taps.taps, 0);
    taps.weight.resize((k + 1) * taps.taps, 0.0f);
  }
  return taps;
}

struct PreparedResize : PreparedKernel {
  llvm::SmallVector<cpu::AxisTaps, 3> passes;
};

Result<std::unique_ptr<PreparedKernel>> prepare(const Attrs& attrs, llvm::ArrayRef<int64_t> in,
                                                llvm::ArrayRef<int64_t> out) {
  auto prepared = std::make_unique<PreparedResize>();
  for (size_t d : resized_axes(attrs, in, out)) {
    Result<cpu::AxisTaps> taps = taps_of_axis(attrs, in[d], out[d], attrs.get_floats("scales")[d]);
    if (!taps) return taps.takeError();
    prepared->passes.push_back(std::move(*taps));
  }
  return prepared;
}

Result<std::unique_ptr<PreparedKernel>> prepare_resize(cpu::Library&, const OpCall& call,
                                                       llvm::ArrayRef<Type> results) {
  return prepare(call.attrs, call["x"].shape, results[0].shape);
}

Result<std::unique_ptr<PreparedKernel>> prepare_resize_grad(cpu::Library&, const OpCall& call,
                                                            llvm::ArrayRef<Type> results) {
  return prepare(call.attrs, results[0].shape, call["dy"].shape);
}

// Two buffers, each as large as the largest tensor between two passes.
int64_t buffer_bytes(llvm::ArrayRef<Shape> shapes) {
  int64_t elements = 0;
  if (shapes.size() > 2)
    for (const Shape& shape : shapes.drop_front().drop_back()) elements = std::max(elements, element_count(shape));
  return align_up(elements * static_cast<int64_t>(sizeof(float)), 64);
}

int64_t workspace(const OpCall& call, llvm::ArrayRef<Type> results) {
  const bool gradient = call.attrs.has("shape");
  const Shape &x = gradient ? results[0].shape : call.operand(0).shape,
              &y = gradient ? call.operand(0).shape : results[0].shape;
  return 2 * buffer_bytes(shapes_of_passes(call.attrs, x, y));
}

enum class Direction : uint8_t { Forward, Gradient };

template <Direction direction>
Status launch(const CpuCall& k) {
  constexpr bool forward = direction == Direction::Forward;
  const Attrs& attrs = k.attrs();
  const llvm::ArrayRef<int64_t> operand = k.in_shape(0), result = k.out_shape(0);
  const auto shapes = shapes_of_passes(attrs, forward ? operand : result, forward ? result : operand);
  const auto axes = resized_axes(attrs, shapes.front(), shapes.back());
  const auto& passes = static_cast<PreparedResize*>(k.prepared)->passes;
  const auto count = static_cast<int64_t>(passes.size());
  auto* buffers = static_cast<char*>(k.workspace);
  const float* from = k.in<float>(0);
  if (count == 0) std::copy_n(from, k.elements(), k.out<float>(0));
  for (int64_t done = 0; done < count; ++done) {
    const int64_t pass = forward ? done : count - 1 - done;
    auto* buffer = reinterpret_cast<float*>(buffers + done % 2 * buffer_bytes(shapes));
    float* to = done + 1 == count ? k.out<float>(0) : buffer;
    const AxisShape split = split_axis(shapes[pass], static_cast<int64_t>(axes[pass]));
    if (forward)
      cpu::resample_axis(passes[pass], split.outer, split.inner, to, from);
    else
      cpu::resample_axis_grad(passes[pass], split.outer, split.inner, to, from);
    from = to;
  }
  return Status::success();
}

// Cropping extrapolates with a constant: not a weighted sum.
bool accepts_resize(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && call.get_string("coordinate") != "tf_crop_and_resize";
}

cpu::GridSamples samples_of(const OpCall& call, llvm::ArrayRef<int64_t> image) {
  const Shape& grid = call["grid"].shape;
  const llvm::StringRef padding = call.get_string("padding");
  return {image[0],
          image[1],
          image[2],
          image[3],
          grid[1] * grid[2],
          call.get_string("mode") == "nearest" ? cpu::SampledAs::Nearest : cpu::SampledAs::Linear,
          padding == "zeros"    ? cpu::SampledOutside::Zeros
          : padding == "border" ? cpu::SampledOutside::Border
                                : cpu::SampledOutside::Reflection,
          call.get_int("align_corners") != 0};
}

Status launch_grid_sample(const CpuCall& k) {
  cpu::grid_sample(samples_of(k.call, k.in_shape("x")), k.out<float>("y"), k.in<float>("x"), k.in<float>("grid"));
  return Status::success();
}

Status launch_grid_sample_dx(const CpuCall& k) {
  cpu::grid_sample_dx(samples_of(k.call, k.out_shape("dx")), k.out<float>("dx"), k.in<float>("grid"),
                      k.in<float>("dy"));
  return Status::success();
}

Status launch_grid_sample_dgrid(const CpuCall& k) {
  cpu::grid_sample_dgrid(samples_of(k.call, k.in_shape("x")), k.out<float>("dgrid"), k.in<float>("x"),
                         k.in<float>("grid"), k.in<float>("dy"));
  return Status::success();
}

constexpr CpuKernel resize_table[] = {
    {op_resize, "separable", accepts_resize, launch<Direction::Forward>, workspace, prepare_resize},
    {op_resize_grad, "separable", accepts_resize, launch<Direction::Gradient>, workspace, prepare_resize_grad},
    {op_grid_sample, "runs", all_f32, launch_grid_sample},
    {op_grid_sample_dx, "runs", all_f32, launch_grid_sample_dx},
    {op_grid_sample_dgrid, "runs", all_f32, launch_grid_sample_dgrid},
};

}  // namespace

llvm::ArrayRef<CpuKernel> resize_kernels() { return resize_table; }

}  // namespace plimsoll
