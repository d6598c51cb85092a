#pragma once

#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// A strided copy from one tensor to another, with where it begins in each.
struct StridedCopy {
  LoopNest<2> nest;  // tensors: to, from
  void* to;
  const void* from;
};

StridedCopy transpose_copy(const KernelCall& k);
StridedCopy expand_copy(const KernelCall& k);
StridedCopy tile_copy(const KernelCall& k);
StridedCopy slice_copy(const KernelCall& k);
// dy to where the slice has read it; the rest of the result is zero.
StridedCopy slice_grad_copy(const KernelCall& k);
// Between a whole tensor and its consecutive pieces along {axis}: `launch` is called once per piece. No list is made,
// since a step allocates nothing.
using LaunchCopy = llvm::function_ref<Status(const StridedCopy&)>;
Status split_copies(const KernelCall& k, LaunchCopy launch);
Status concat_copies(const KernelCall& k, LaunchCopy launch);

// `element` elements behind the start.
inline void* element_at(const TensorView& view, int64_t element) {
  return view.as<char>() + element * dtype_bytes(view.type.dtype);
}

}  // namespace plimsoll
