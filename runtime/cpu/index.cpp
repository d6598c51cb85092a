#include "runtime/kernels/index.h"
#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels.h"

// Ops that pick or add slices by index. An index outside its dimension is an error of the data.

namespace plimsoll {
namespace {

Status bad_index(int64_t size) { return model_error("an index is outside a dimension of " + llvm::Twine(size)); }

bool accepts_gather(const OpCall& call, llvm::ArrayRef<Type>) { return is_label(call.operand(1).dtype); }

Status launch_gather(const CpuCall& k) {
  const AxisSplit x(k.in_shape(0), k.attrs().get_int("axis"));
  const int64_t count = k.operands[1].elements(), bytes = x.inner * dtype_bytes(k.call.operand(0).dtype);
  const bool inside = k.call.operand(1).dtype == DType::I64
                          ? cpu::gather_rows(k.out(0), k.in(0), k.in<int64_t>(1), x.outer, x.length, count, bytes)
                          : cpu::gather_rows(k.out(0), k.in(0), k.in<int32_t>(1), x.outer, x.length, count, bytes);
  return inside ? Status::success() : bad_index(x.length);
}

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_label(call.operand(0).dtype) && results[0].dtype == DType::F32;
}

Status launch_gather_grad(const CpuCall& k) {
  const AxisSplit dx(k.out_shape(0), k.attrs().get_int("axis"));
  const int64_t count = k.operands[0].elements();
  auto add = [&](const auto* indices) {
    return cpu::gather_rows_grad(k.out<float>(0), k.in<float>(1), k.in<float>(2), indices, dx.outer, dx.length, count,
                                 dx.inner);
  };
  const bool inside = k.call.operand(0).dtype == DType::I64 ? add(k.in<int64_t>(0)) : add(k.in<int32_t>(0));
  return inside ? Status::success() : bad_index(dx.length);
}

constexpr CpuKernel kernels[] = {
    {op_gather, "rows", accepts_gather, launch_gather},
    {op_gather_grad, "columns", accepts_gather_grad, launch_gather_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> index_kernels() { return kernels; }

}  // namespace plimsoll
