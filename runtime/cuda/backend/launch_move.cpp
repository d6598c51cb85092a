#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"

// Ops that only move elements. Each is one or several strided copies, for any dtype.

namespace plimsoll {
namespace {

void* at(const TensorView& view, int64_t element) { return view.as<char>() + element * dtype_bytes(view.type.dtype); }

Status copy(const CudaCall& k, const LoopNest<2>& nest, void* to, const void* from) {
  return launched(k, cuda::copy_strided(nest, to, from, element_bytes(k), k.stream));
}

Status launch_transpose(const CudaCall& k) {
  const Shape own = row_major_strides(k.call.operand(0).shape);
  Shape steps;
  for (int64_t d : k.call.attrs.get_ints("perm")) steps.push_back(own[d]);
  const Shape& shape = k.results[0].type.shape;
  return copy(k, copy_nest(shape, row_major_strides(shape), steps), k.out(0), k.in(0));
}

Status launch_expand(const CudaCall& k) {
  const Shape& shape = k.results[0].type.shape;
  return copy(k, copy_nest(shape, row_major_strides(shape), broadcast_steps(k.call.operand(0).shape, shape)), k.out(0),
              k.in(0));
}

// Every dimension becomes two: the repeat, over which the source stands still, and itself.
Status launch_tile(const CudaCall& k) {
  const Shape &shape = k.call.operand(0).shape, x_steps = row_major_strides(shape);
  const Shape y_steps = row_major_strides(k.results[0].type.shape);
  LoopNest<2> nest;
  for (size_t d = 0; d < shape.size(); ++d) {
    nest.add_dimension(k.call.attrs.get_ints("repeats")[d], {y_steps[d] * shape[d], 0});
    nest.add_dimension(shape[d], {y_steps[d], x_steps[d]});
  }
  return copy(k, nest, k.out(0), k.in(0));
}

// Where slice {starts, steps} reads in a tensor of shape `whole`.
struct Picked {
  Shape steps;
  int64_t base = 0;
  Picked(const Attrs& attrs, llvm::ArrayRef<int64_t> whole) : steps(row_major_strides(whole)) {
    for (size_t d = 0; d < whole.size(); ++d) {
      base += attrs.get_ints("starts")[d] * steps[d];
      steps[d] *= attrs.get_ints("steps")[d];
    }
  }
};

Status launch_slice(const CudaCall& k) {
  const Picked picked(k.call.attrs, k.call.operand(0).shape);
  const Shape& shape = k.results[0].type.shape;
  if (element_count(shape) == 0) return Status::success();
  return copy(k, copy_nest(shape, row_major_strides(shape), picked.steps), k.out(0), at(k.operands[0], picked.base));
}

// Padding with zeros where dy's elements stay neighbours; else zeros, then a copy.
Status launch_slice_grad(const CudaCall& k) {
  const Shape &shape = k.call.operand(0).shape, &whole = k.results[0].type.shape;
  llvm::ArrayRef<int64_t> starts = k.call.attrs.get_ints("starts"), steps = k.call.attrs.get_ints("steps");
  if (element_count(shape) == 0) return launched(k, cuda::zero_bytes(k.out(0), k.results[0].type.bytes(), k.stream));
  if (llvm::all_of(steps, [](int64_t step) { return step == 1; })) {
    cuda::Pad pad;
    pad.rank = static_cast<int>(shape.size());
    llvm::copy(whole, pad.padded);
    llvm::copy(shape, pad.inner);
    llvm::copy(starts, pad.before);
    return launched(k, cuda::pad(pad, k.out(0), k.in(0), nullptr, element_bytes(k), k.stream));
  }
  const Picked picked(k.call.attrs, whole);
  if (Status s = launched(k, cuda::zero_bytes(k.out(0), k.results[0].type.bytes(), k.stream))) return s;
  return copy(k, copy_nest(shape, picked.steps, row_major_strides(shape)), at(k.results[0], picked.base), k.in(0));
}

// Copies between a whole tensor and its consecutive parts along an axis.
enum class Direction : uint8_t { Split, Combine };

Status copy_parts(const CudaCall& k, const TensorView& whole, llvm::ArrayRef<TensorView> parts, Direction direction) {
  const int64_t axis = k.call.attrs.get_int("axis");
  const Shape whole_steps = row_major_strides(whole.type.shape);
  int64_t start = 0;
  for (const TensorView& part : parts) {
    const Shape &shape = part.type.shape, part_steps = row_major_strides(shape);
    void* place = at(whole, start * whole_steps[axis]);
    Status s = direction == Direction::Split ? copy(k, copy_nest(shape, part_steps, whole_steps), part.data, place)
                                             : copy(k, copy_nest(shape, whole_steps, part_steps), place, part.data);
    if (s) return s;
    start += shape[axis];
  }
  return Status::success();
}

Status launch_split(const CudaCall& k) { return copy_parts(k, k.operands[0], k.results, Direction::Split); }
Status launch_concat(const CudaCall& k) { return copy_parts(k, k.results[0], k.operands, Direction::Combine); }

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
  const cuda::Pad pad = pad_of(k.call.attrs, k.results[0].type.shape, k.call.operand(0).shape);
  return launched(k, cuda::pad(pad, k.out(0), k.in(0), k.in(1), element_bytes(k), k.stream));
}

Status launch_pad_grad(const CudaCall& k) {
  const cuda::Pad pad = pad_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape);
  return launched(k, cuda::pad_grad(pad, k.out_scalar(0), k.out(0), k.in(0), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"transpose", "tiled", launch_transpose},      {"expand", "strided_copy", launch_expand},
    {"tile", "strided_copy", launch_tile},         {"slice", "strided_copy", launch_slice},
    {"slice_grad", "one_pass", launch_slice_grad}, {"split", "strided_copy", launch_split},
    {"concat", "strided_copy", launch_concat},     {"pad", "one_pass", launch_pad},
    {"pad_grad", "repeats", launch_pad_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_move_launchers() { return launchers; }

}  // namespace plimsoll
