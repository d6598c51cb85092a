#include "runtime/cuda/float_types.h"

namespace plimsoll {
namespace {

// Up to three axes change; regions of interest stay with the reference.
bool accepts_resize(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Shape &from = call.operand(0).shape, &to = results[0].shape;
  const llvm::ArrayRef<double> scales = call.attrs.get_floats("scales");
  int changed = 0;
  for (size_t d = 0; d < from.size(); ++d) changed += from[d] != to[d] || scales[d] != 1;
  return changed <= 3 && computes_in_f32(call.operand(0).dtype) &&
         call.attrs.get_string("coordinate") != "tf_crop_and_resize";
}

constexpr CudaCandidate candidates[] = {
    {"resize", "gather", accepts_resize},
    {"resize_grad", "gather", accepts_resize},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_resize_candidates() { return candidates; }

}  // namespace plimsoll
