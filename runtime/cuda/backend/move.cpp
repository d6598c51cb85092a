#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/move.h"

#include "llvm/ADT/STLExtras.h"

// Ops that only move elements. Each is one or several strided copies, for any dtype.

namespace plimsoll {
namespace {

Status copy(const CudaCall& k, const StridedCopy& copy) {
  return launched(k, cuda::copy_strided(copy.nest, copy.to, copy.from, k.element_bytes(), k.stream));
}

template <StridedCopy (*copy_of)(const KernelCall&)>
Status launch_copy(const CudaCall& k) {
  return k.elements() == 0 ? Status::success() : copy(k, copy_of(k));
}

template <Status (*copies_of)(const KernelCall&, LaunchCopy)>
Status launch_copies(const CudaCall& k) {
  return copies_of(k, [&](const StridedCopy& each) { return copy(k, each); });
}

Status zero(const CudaCall& k) {
  return launched(k, cuda::zero_bytes(k.out("dx"), k.result("dx").type.bytes(), k.stream));
}

// Padding with zeros where dy's elements stay neighbours; else zeros, then a copy.
Status launch_slice_grad(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape("dy"), whole = k.out_shape("dx");
  if (element_count(shape) == 0) return zero(k);
  if (llvm::all_of(k.call.get_ints("steps"), [](int64_t step) { return step == 1; })) {
    cuda::Pad pad;
    pad.rank = static_cast<int>(shape.size());
    llvm::copy(whole, pad.padded);
    llvm::copy(shape, pad.inner);
    llvm::copy(k.call.get_ints("starts"), pad.before);
    return launched(k, cuda::pad(pad, k.out("dx"), k.in("dy"), nullptr, k.element_bytes(), k.stream));
  }
  if (Status s = zero(k)) return s;
  return copy(k, slice_grad_copy(k));
}

cuda::PadMode pad_mode(const OpCall& call) {
  const llvm::StringRef mode = call.get_string("mode");
  if (mode == "reflect") return cuda::PadMode::Reflect;
  if (mode == "edge") return cuda::PadMode::Edge;
  return mode == "wrap" ? cuda::PadMode::Wrap : cuda::PadMode::Constant;
}

cuda::Pad pad_of(const OpCall& call, llvm::ArrayRef<int64_t> padded, llvm::ArrayRef<int64_t> inner) {
  cuda::Pad pad;
  pad.mode = pad_mode(call);
  pad.rank = static_cast<int>(padded.size());
  llvm::copy(padded, pad.padded);
  llvm::copy(inner, pad.inner);
  llvm::copy(call.get_ints("before"), pad.before);
  return pad;
}

Status launch_pad(const CudaCall& k) {
  const cuda::Pad pad = pad_of(k.call, k.out_shape("y"), k.in_shape("x"));
  return launched(k, cuda::pad(pad, k.out("y"), k.in("x"), k.in("value"), k.element_bytes(), k.stream));
}

Status launch_pad_grad(const CudaCall& k) {
  const cuda::Pad pad = pad_of(k.call, k.in_shape("dy"), k.out_shape("dx"));
  return launched(k, cuda::pad_grad(pad, k.out_scalar("dx"), k.out("dx"), k.in("dy"), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {op_transpose, "tiled", launch_copy<transpose_copy>},
    {op_expand, "strided_copy", launch_copy<expand_copy>},
    {op_tile, "strided_copy", launch_copy<tile_copy>},
    {op_slice, "strided_copy", launch_copy<slice_copy>},
    {op_slice_grad, "one_pass", launch_slice_grad},
    {op_split, "strided_copy", launch_copies<split_copies>},
    {op_concat, "strided_copy", launch_copies<concat_copies>},
    {op_pad, "one_pass", launch_pad},
    {op_pad_grad, "repeats", launch_pad_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> move_launchers() { return launchers; }

}  // namespace plimsoll
