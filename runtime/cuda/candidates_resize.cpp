#include "kernels/cuda/resize_workspace.h"
#include "runtime/cuda/float_types.h"

#include "llvm/ADT/STLExtras.h"

#include <limits>

namespace plimsoll {
namespace {

llvm::SmallVector<size_t, 3> resampled_axes(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Shape &from = call.operand(0).shape, &to = results[0].shape;
  const llvm::ArrayRef<double> scales = call.attrs.get_floats("scales");
  llvm::SmallVector<size_t, 3> axes;
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != to[d] || scales[d] != 1) axes.push_back(d);
  return axes;
}

// Up to three axes change; regions of interest stay with the reference. Taps are 32 bits wide.
bool accepts_resize(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t longest = std::numeric_limits<int32_t>::max();
  const llvm::SmallVector<size_t, 3> axes = resampled_axes(call, results);
  return axes.size() <= 3 && computes_in_f32(call.operand(0).dtype) &&
         call.attrs.get_string("coordinate") != "tf_crop_and_resize" &&
         llvm::all_of(axes, [&](size_t d) { return std::max(call.operand(0).shape[d], results[0].shape[d]) <= longest; });
}

// The taps of what is resampled to, in either direction.
int64_t resize_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  int64_t elements = 0;
  for (size_t d : resampled_axes(call, results)) elements += call.attrs.get_ints("sizes")[d];
  return cuda::resize_workspace_bytes(elements);
}

constexpr CudaCandidate candidates[] = {
    {"resize", "gather", accepts_resize, resize_workspace},
    {"resize_grad", "gather", accepts_resize, resize_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_resize_candidates() { return candidates; }

}  // namespace plimsoll
