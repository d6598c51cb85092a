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

Status zero(const CudaCall& k) { return launched(k, cuda::zero_bytes(k.out(0), k.results[0].type.bytes(), k.stream)); }

// Padding with zeros where dy's elements stay neighbours; else zeros, then a copy.
Status launch_slice_grad(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape(0), whole = k.out_shape(0);
  if (element_count(shape) == 0) return zero(k);
  if (llvm::all_of(k.attrs().get_ints("steps"), [](int64_t step) { return step == 1; })) {
    cuda::Pad pad;
    pad.rank = static_cast<int>(shape.size());
    llvm::copy(whole, pad.padded);
    llvm::copy(shape, pad.inner);
    llvm::copy(k.attrs().get_ints("starts"), pad.before);
    return launched(k, cuda::pad(pad, k.out(0), k.in(0), nullptr, k.element_bytes(), k.stream));
  }
  if (Status s = zero(k)) return s;
  return copy(k, slice_grad_copy(k));
}

cuda::PadMode pad_mode(const Attrs& attrs) {
  llvm::StringRef mode = attrs.get_string("mode", "constant");
  if (mode == "reflect") return cuda::PadMode::Reflect;
  if (mode == "edge") return cuda::PadMode::Edge;
  return mode == "wrap" ? cuda::PadMode::Wrap : cuda::PadMode::Constant;
}

cuda::Pad pad_of(const Attrs& attrs, llvm::ArrayRef<int64_t> padded, llvm::ArrayRef<int64_t> inner) {
  cuda::Pad pad;
  pad.mode = pad_mode(attrs);
  pad.rank = static_cast<int>(padded.size());
  llvm::copy(padded, pad.padded);
  llvm::copy(inner, pad.inner);
  llvm::copy(attrs.get_ints("before"), pad.before);
  return pad;
}

Status launch_pad(const CudaCall& k) {
  const cuda::Pad pad = pad_of(k.attrs(), k.out_shape(0), k.in_shape(0));
  return launched(k, cuda::pad(pad, k.out(0), k.in(0), k.in(1), k.element_bytes(), k.stream));
}

Status launch_pad_grad(const CudaCall& k) {
  const cuda::Pad pad = pad_of(k.attrs(), k.in_shape(0), k.out_shape(0));
  return launched(k, cuda::pad_grad(pad, k.out_scalar(0), k.out(0), k.in(0), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {kernel::transpose_tiled, launch_copy<transpose_copy>},
    {kernel::expand_strided_copy, launch_copy<expand_copy>},
    {kernel::tile_strided_copy, launch_copy<tile_copy>},
    {kernel::slice_strided_copy, launch_copy<slice_copy>},
    {kernel::slice_grad_one_pass, launch_slice_grad},
    {kernel::split_strided_copy, launch_copies<split_copies>},
    {kernel::concat_strided_copy, launch_copies<concat_copies>},
    {kernel::pad_one_pass, launch_pad},
    {kernel::pad_grad_repeats, launch_pad_grad},
};
static_assert(launches_each(move_candidates, launchers));

}  // namespace

llvm::ArrayRef<CudaLauncher> move_launchers() { return launchers; }

}  // namespace plimsoll
