#include "runtime/kernels/resize.h"

#include "kernels/cuda/resize/resize_workspace.h"

#include <limits>

namespace plimsoll {

llvm::SmallVector<size_t, 3> resized_axes(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out) {
  const llvm::ArrayRef<double> scales = attrs.get_floats("scales");
  llvm::SmallVector<size_t, 3> axes;
  for (size_t d = 0; d < in.size(); ++d)
    if (in[d] != out[d] || scales[d] != 1) axes.push_back(d);
  return axes;
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
    {op_resize, "gather", accepts_resize, resize_workspace},
    {op_resize_grad, "gather", accepts_resize, resize_grad_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> resize_candidates() { return resize_table; }

}  // namespace plimsoll
