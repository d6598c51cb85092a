#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels_families.h"

#include <cstring>

// Ops that only move elements. Each is one or several strided copies, for any dtype.

namespace plimsoll {
namespace {

int element_bytes(const KernelCall& k) { return static_cast<int>(dtype_bytes(k.results[0].type.dtype)); }

void* at(const TensorView& view, int64_t element) { return view.as<char>() + element * dtype_bytes(view.type.dtype); }

Status launch_constant(const KernelCall& k) {
  cpu::copy_bytes(k.results[0].data, k.call.attrs.get_tensor("value")->data(), k.results[0].type.bytes());
  return Status::success();
}

Status launch_transpose(const KernelCall& k) {
  const Shape own = row_major_strides(k.call.operand(0).shape);
  Shape steps;
  for (int64_t d : k.call.attrs.get_ints("perm")) steps.push_back(own[d]);
  const Shape& shape = k.results[0].type.shape;
  cpu::copy_strided(copy_nest(shape, row_major_strides(shape), steps), k.results[0].data, k.operands[0].data,
                    element_bytes(k));
  return Status::success();
}

Status launch_expand(const KernelCall& k) {
  const Shape& shape = k.results[0].type.shape;
  cpu::copy_strided(copy_nest(shape, row_major_strides(shape), broadcast_steps(k.call.operand(0).shape, shape)),
                    k.results[0].data, k.operands[0].data, element_bytes(k));
  return Status::success();
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

Status launch_slice(const KernelCall& k) {
  const Picked picked(k.call.attrs, k.call.operand(0).shape);
  const Shape& shape = k.results[0].type.shape;
  cpu::copy_strided(copy_nest(shape, row_major_strides(shape), picked.steps), k.results[0].data,
                    at(k.operands[0], picked.base), element_bytes(k));
  return Status::success();
}

void fill_zero(const TensorView& view) {
  const uint64_t zero = 0;
  cpu::fill_elements(view.data, &zero, static_cast<int>(dtype_bytes(view.type.dtype)), view.elements());
}

Status launch_slice_grad(const KernelCall& k) {
  fill_zero(k.results[0]);
  const Picked picked(k.call.attrs, k.results[0].type.shape);
  const Shape& shape = k.call.operand(0).shape;
  cpu::copy_strided(copy_nest(shape, picked.steps, row_major_strides(shape)), at(k.results[0], picked.base),
                    k.operands[0].data, element_bytes(k));
  return Status::success();
}

// Copies between a whole tensor and its consecutive parts along an axis.
enum class Direction : uint8_t { Split, Combine };

void copy_parts(const TensorView& whole, llvm::ArrayRef<TensorView> parts, int64_t axis, Direction direction) {
  const Shape whole_steps = row_major_strides(whole.type.shape);
  int64_t start = 0;
  for (const TensorView& part : parts) {
    const Shape& shape = part.type.shape;
    const Shape part_steps = row_major_strides(shape);
    void* place = at(whole, start * whole_steps[axis]);
    const int bytes = static_cast<int>(dtype_bytes(whole.type.dtype));
    if (direction == Direction::Split)
      cpu::copy_strided(copy_nest(shape, part_steps, whole_steps), part.data, place, bytes);
    else
      cpu::copy_strided(copy_nest(shape, whole_steps, part_steps), place, part.data, bytes);
    start += shape[axis];
  }
}

Status launch_split(const KernelCall& k) {
  copy_parts(k.operands[0], k.results, k.call.attrs.get_int("axis"), Direction::Split);
  return Status::success();
}

Status launch_concat(const KernelCall& k) {
  copy_parts(k.results[0], k.operands, k.call.attrs.get_int("axis"), Direction::Combine);
  return Status::success();
}

bool accepts_constant_pad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.attrs.get_string("mode", "constant") == "constant" && ranks_fit(call, results);
}

// Fills, then copies what lies inside both tensors; negative pads crop.
Status launch_pad(const KernelCall& k) {
  const TensorView &x = k.operands[0], &y = k.results[0];
  uint64_t value = 0;
  if (k.has(1)) std::memcpy(&value, k.operands[1].data, static_cast<size_t>(element_bytes(k)));
  cpu::fill_elements(y.data, &value, element_bytes(k), y.elements());
  llvm::ArrayRef<int64_t> before = k.call.attrs.get_ints("before"), after = k.call.attrs.get_ints("after");
  const Shape x_steps = row_major_strides(x.type.shape), y_steps = row_major_strides(y.type.shape);
  Shape shape = x.type.shape;
  int64_t x_base = 0, y_base = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    shape[d] += std::min<int64_t>(before[d], 0) + std::min<int64_t>(after[d], 0);
    x_base += std::max<int64_t>(-before[d], 0) * x_steps[d];
    y_base += std::max<int64_t>(before[d], 0) * y_steps[d];
    if (shape[d] <= 0) return Status::success();
  }
  cpu::copy_strided(copy_nest(shape, y_steps, x_steps), at(y, y_base), at(x, x_base), element_bytes(k));
  return Status::success();
}

bool accepts_tile(const OpCall& call, llvm::ArrayRef<Type> results) { return 2 * results[0].rank() <= max_rank; }

// Every dimension becomes two: the repeat, over which the source stands still, and itself.
Status launch_tile(const KernelCall& k) {
  const Shape &shape = k.call.operand(0).shape, x_steps = row_major_strides(shape);
  const Shape y_steps = row_major_strides(k.results[0].type.shape);
  LoopNest<2> nest;
  for (size_t d = 0; d < shape.size(); ++d) {
    nest.add_dimension(k.call.attrs.get_ints("repeats")[d], {y_steps[d] * shape[d], 0});
    nest.add_dimension(shape[d], {y_steps[d], x_steps[d]});
  }
  cpu::copy_strided(nest, k.results[0].data, k.operands[0].data, element_bytes(k));
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {"constant", "bytes", ranks_fit, launch_constant},
    {"transpose", "tiled", ranks_fit, launch_transpose},
    {"expand", "strided_copy", ranks_fit, launch_expand},
    {"slice", "strided_copy", ranks_fit, launch_slice},
    {"slice_grad", "strided_copy", ranks_fit, launch_slice_grad},
    {"split", "strided_copy", ranks_fit, launch_split},
    {"concat", "strided_copy", ranks_fit, launch_concat},
    {"pad", "strided_copy", accepts_constant_pad, launch_pad},
    {"tile", "strided_copy", accepts_tile, launch_tile},
};

}  // namespace

llvm::ArrayRef<CpuKernel> move_kernels() { return kernels; }

}  // namespace plimsoll
