#include "kernels/cuda/move/move.h"
#include "kernels/cuda/move/parts.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/move.h"

#include "llvm/ADT/STLExtras.h"

// Ops that only move elements, for any dtype.

namespace plimsoll {
namespace {

// A part that lies at its run of the whole stays where it is.
Status copy(const CudaCall& k, const StridedCopy& copy) {
  if (copy.to == copy.from) return Status::success();
  return launched(k, cuda::copy_strided(copy.nest, copy.to, copy.from, k.element_bytes(), k.stream));
}

template <StridedCopy (*copy_of)(const KernelCall&)>
Status launch_copy(const CudaCall& k) {
  return k.elements() == 0 ? Status::success() : copy(k, copy_of(k));
}

// Between a whole tensor and its pieces along {axis}, which are columns of it where what comes before the axis is rows.
// Those that lie at their runs of the whole stay where they are.
template <cudaError_t (*copy_parts)(const cuda::Parts&, int, cudaStream_t)>
Status copy_pieces(const CudaCall& k, const TensorView& whole, llvm::ArrayRef<TensorView> pieces) {
  const llvm::ArrayRef<int64_t> shape(whole.type.shape);
  const auto axis = static_cast<size_t>(k.call.get_int("axis"));
  const int64_t of_index = element_count(shape.drop_front(axis + 1));
  cuda::Parts parts{whole.data, element_count(shape.take_front(axis)), shape[axis] * of_index};
  int64_t first = 0;
  for (const TensorView& piece : pieces) {
    const int64_t columns = piece.type.shape[axis] * of_index;
    if (piece.data != element_at(whole, first)) parts.parts[parts.count++] = {piece.data, first, columns};
    first += columns;
    if (parts.count == 0 || (parts.count < cuda::max_parts && &piece != &pieces.back())) continue;
    if (Status s = launched(k, copy_parts(parts, k.element_bytes(), k.stream))) return s;
    parts.count = 0;
  }
  return Status::success();
}

Status launch_split(const CudaCall& k) { return copy_pieces<cuda::split_parts>(k, k.operand("x"), k.results); }
Status launch_concat(const CudaCall& k) { return copy_pieces<cuda::join_parts>(k, k.result("y"), k.operands); }

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

constexpr CudaLauncher move_table[] = {
    {op_transpose, "tiled", launch_copy<transpose_copy>},
    {op_expand, "strided_copy", launch_copy<expand_copy>},
    {op_tile, "strided_copy", launch_copy<tile_copy>},
    {op_slice, "strided_copy", launch_copy<slice_copy>},
    {op_slice_grad, "one_pass", launch_slice_grad},
    {op_split, "parts", launch_split},
    {op_concat, "parts", launch_concat},
    {op_pad, "one_pass", launch_pad},
    {op_pad_grad, "repeats", launch_pad_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> move_launchers() { return move_table; }

}  // namespace plimsoll
