#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels.h"
#include "runtime/kernels/move.h"

#include <cstring>

// Ops that only move elements. Each is one or several strided copies, for any dtype.

namespace plimsoll {
namespace {

// A part that lies at its run of the whole stays where it is.
void copy(const CpuCall& k, const StridedCopy& copy) {
  if (copy.to != copy.from) cpu::copy_strided(copy.nest, copy.to, copy.from, k.element_bytes());
}

template <StridedCopy (*copy_of)(const KernelCall&)>
Status launch_copy(const CpuCall& k) {
  copy(k, copy_of(k));
  return Status::success();
}

template <Status (*copies_of)(const KernelCall&, LaunchCopy)>
Status launch_copies(const CpuCall& k) {
  return copies_of(k, [&](const StridedCopy& each) { return copy(k, each), Status::success(); });
}

Status launch_constant(const CpuCall& k) {
  cpu::copy_bytes(k.out("y"), k.attrs().get_tensor("value")->data(), k.result("y").type.bytes());
  return Status::success();
}

Status launch_slice_grad(const CpuCall& k) {
  const uint64_t zero = 0;
  cpu::fill_elements(k.out("dx"), &zero, k.element_bytes(), k.elements());
  copy(k, slice_grad_copy(k));
  return Status::success();
}

bool accepts_constant_pad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.get_string("mode") == "constant" && ranks_fit(call, results);
}

// Fills, then copies what lies inside both tensors; negative pads crop.
Status launch_pad(const CpuCall& k) {
  const TensorView &x = k.operand("x"), &y = k.result("y");
  uint64_t value = 0;
  if (const void* given = k.in("value")) std::memcpy(&value, given, static_cast<size_t>(k.element_bytes()));
  cpu::fill_elements(y.data, &value, k.element_bytes(), y.elements());
  llvm::ArrayRef<int64_t> before = k.attrs().get_ints("before"), after = k.attrs().get_ints("after");
  const Shape x_steps = row_major_strides(x.type.shape), y_steps = row_major_strides(y.type.shape);
  Shape shape = x.type.shape;
  int64_t x_base = 0, y_base = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    shape[d] += std::min<int64_t>(before[d], 0) + std::min<int64_t>(after[d], 0);
    x_base += std::max<int64_t>(-before[d], 0) * x_steps[d];
    y_base += std::max<int64_t>(before[d], 0) * y_steps[d];
    if (shape[d] <= 0) return Status::success();
  }
  cpu::copy_strided(copy_nest(shape, y_steps, x_steps), element_at(y, y_base), element_at(x, x_base),
                    k.element_bytes());
  return Status::success();
}

constexpr CpuKernel move_table[] = {
    {op_constant, "bytes", ranks_fit, launch_constant},
    {op_transpose, "tiled", ranks_fit, launch_copy<transpose_copy>},
    {op_expand, "strided_copy", ranks_fit, launch_copy<expand_copy>},
    {op_slice, "strided_copy", ranks_fit, launch_copy<slice_copy>},
    {op_slice_grad, "strided_copy", ranks_fit, launch_slice_grad},
    {op_split, "strided_copy", ranks_fit, launch_copies<split_copies>},
    {op_concat, "strided_copy", ranks_fit, launch_copies<concat_copies>},
    {op_pad, "strided_copy", accepts_constant_pad, launch_pad},
    {op_tile, "strided_copy", ranks_fit_twice, launch_copy<tile_copy>},
};

}  // namespace

llvm::ArrayRef<CpuKernel> move_kernels() { return move_table; }

}  // namespace plimsoll
