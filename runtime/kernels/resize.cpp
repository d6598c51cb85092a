#include "runtime/kernels/resize.h"

#include "kernels/cuda/resize/resize_workspace.h"
#include "runtime/kernels/grid_sample.h"

#include <limits>

namespace plimsoll {
namespace {

// Is element k of y always element k / count of x, for whole counts?
bool repeats_elements(const OpCall& call) {
  if (call.get_string("mode") != "nearest") return false;
  const llvm::StringRef coordinate = call.get_string("coordinate"), nearest = call.get_string("nearest");
  if (coordinate == "asymmetric" || coordinate == "tf_half_pixel_for_nn") return nearest == "floor";
  const bool is_half_pixel = coordinate == "half_pixel" || coordinate == "pytorch_half_pixel";
  return is_half_pixel && (nearest == "round_prefer_floor" || nearest == "round_prefer_ceil");
}

}  // namespace

llvm::SmallVector<size_t, 3> resized_axes(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out) {
  const llvm::ArrayRef<double> scales = attrs.get_floats("scales");
  llvm::SmallVector<size_t, 3> axes;
  for (size_t d = 0; d < in.size(); ++d)
    if (in[d] != out[d] || scales[d] != 1) axes.push_back(d);
  return axes;
}

std::optional<Repetitions> repetitions_of(const OpCall& call, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const llvm::SmallVector<size_t, 3> axes = resized_axes(call.attrs, x, y);
  if (!repeats_elements(call) || axes.empty() || axes.size() > 2 || axes.back() + 1 != axes.front() + axes.size())
    return std::nullopt;
  const llvm::ArrayRef<double> scales = call.attrs.get_floats("scales");
  for (size_t d : axes)
    if (x[d] == 0 || y[d] % x[d] != 0 || y[d] < 2 * x[d] || scales[d] != static_cast<double>(y[d] / x[d]))
      return std::nullopt;
  const size_t last = axes.back();
  return Repetitions{axes.size() == 2 ? y[axes[0]] / x[axes[0]] : 1, y[last] / x[last], last};
}

namespace {

// Elements of a line, the last resampled axis with what stands inside of it, on the larger side.
int64_t line_elements(const Shape& from, const Shape& to, size_t axis) {
  return std::max(from[axis], to[axis]) * element_count(llvm::ArrayRef<int64_t>(from).drop_front(axis + 1));
}

// Up to three axes change; regions of interest stay with the reference. Places in a line are 32 bits wide.
bool accepts_resize(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t longest = std::numeric_limits<int32_t>::max();
  const Shape &from = call.operand(0).shape, &to = results[0].shape;
  const llvm::SmallVector<size_t, 3> axes = resized_axes(call.attrs, call.operand(0).shape, results[0].shape);
  return axes.size() <= cuda::max_resized_axes && computes_in_f32(call.operand(0).dtype) &&
         call.get_string("coordinate") != "tf_crop_and_resize" &&
         llvm::all_of(axes, [&](size_t d) { return std::max(from[d], to[d]) <= longest; }) &&
         (axes.empty() || line_elements(from, to, axes.back()) <= longest);
}

// Images with several channels last: a run of them is what neighbouring threads read.
constexpr int64_t least_channels = 16;

// Measured on an H200: forward, whole accesses of a pixel are as quick by lines. Gradients of few pixels are no work
// for a card, where each has many to add up.
constexpr int64_t most_given = 64;

bool has_whole_pixels(const OpCall& call, int64_t channels) {
  return channels * dtype_bytes(call.operand(0).dtype) % 16 == 0;
}

bool accepts_channels(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Shape &from = call.operand(0).shape, &to = results[0].shape;
  const llvm::SmallVector<size_t, 3> axes = resized_axes(call.attrs, from, to);
  if (!accepts_resize(call, results) || axes.empty() || axes.back() + 1 != axes.front() + axes.size()) return false;
  const int64_t channels = element_count(llvm::ArrayRef<int64_t>(to).drop_front(axes.back() + 1));
  const int64_t elements = std::max(call.operand(0).elements(), results[0].elements());
  if (channels < least_channels || elements == 0 || elements > std::numeric_limits<int32_t>::max()) return false;
  if (call.op.name == "resize") return !has_whole_pixels(call, channels);
  return channels % 2 == 0 && call.operand(0).elements() <= most_given * results[0].elements();
}

// Shares of the speed of a copy.
template <const double& forward, const double& backward>
double resize_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const double bytes = static_cast<double>(call.operand(0).bytes() + results[0].bytes());
  const double share = call.op.name == "resize" ? forward : backward;
  return bytes / (share * device.memory_gb_per_s * 1e3) + 2 * (device.launch_us + device.kernel_us);
}
constexpr double by_channels = 0.33, by_channels_back = 0.38, by_lines = 0.45, by_lines_back = 0.25;

// A sum is a thread's.
constexpr int64_t most_repetitions = 256;

bool accepts_repeats(const OpCall& call, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const std::optional<Repetitions> repeats = repetitions_of(call, x, y);
  if (!repeats || !computes_in_f32(call.operand(0).dtype)) return false;
  const int64_t line = element_count(y.drop_front(repeats->axis));
  return repeats->down * repeats->across <= most_repetitions && line <= std::numeric_limits<int32_t>::max() / 4;
}
bool accepts_repeat(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_repeats(call, call["x"].shape, results[0].shape);
}
bool accepts_sum_repeats(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_repeats(call, results[0].shape, call["dy"].shape);
}

int64_t elements_along(llvm::ArrayRef<size_t> axes, const Shape& shape) {
  int64_t elements = 0;
  for (size_t d : axes) elements += shape[d];
  return elements;
}

int64_t workspace(const Attrs& attrs, const Shape& x, const Shape& y) {
  const llvm::SmallVector<size_t, 3> axes = resized_axes(attrs, x, y);
  return cuda::resize_workspace_bytes(elements_along(axes, x), elements_along(axes, y));
}
int64_t resize_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return workspace(call.attrs, call["x"].shape, results[0].shape);
}
int64_t resize_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return workspace(call.attrs, results[0].shape, call["dy"].shape);
}

constexpr CudaCandidate resize_table[] = {
    {op_resize, "repeats", accepts_repeat},
    {.op = op_resize,
     .name = "channels",
     .accepts = accepts_channels,
     .workspace_bytes = resize_workspace,
     .predicted_us = resize_us<by_channels, by_channels_back>},
    {.op = op_resize,
     .name = "gather",
     .accepts = accepts_resize,
     .workspace_bytes = resize_workspace,
     .predicted_us = resize_us<by_lines, by_lines_back>},
    {op_resize_grad, "repeats", accepts_sum_repeats},
    {.op = op_resize_grad,
     .name = "channels",
     .accepts = accepts_channels,
     .workspace_bytes = resize_grad_workspace,
     .predicted_us = resize_us<by_channels, by_channels_back>},
    {.op = op_resize_grad,
     .name = "gather",
     .accepts = accepts_resize,
     .workspace_bytes = resize_grad_workspace,
     .predicted_us = resize_us<by_lines, by_lines_back>},
    {.op = op_grid_sample, .name = "runs", .accepts = accepts_grid_samples, .predicted_us = grid_sample_us},
    {.op = op_grid_sample_dx,
     .name = "ordered",
     .accepts = accepts_grid_samples,
     .workspace_bytes = grid_sample_dx_workspace,
     .predicted_us = grid_sample_dx_us},
    {.op = op_grid_sample_dgrid, .name = "runs", .accepts = accepts_grid_samples, .predicted_us = grid_sample_dgrid_us},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> resize_candidates() { return resize_table; }

}  // namespace plimsoll
