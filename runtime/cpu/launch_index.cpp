#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels_families.h"

// Ops that pick or add slices by index. An index outside its dimension is an error of the data.

namespace plimsoll {
namespace {

Status bad_index(int64_t size) { return model_error("an index is outside a dimension of " + llvm::Twine(size)); }

bool accepts_gather(const OpCall& call, llvm::ArrayRef<Type>) {
  return call.operand(1).dtype == DType::I64 || call.operand(1).dtype == DType::I32;
}

Status launch_gather(const KernelCall& k) {
  const AxisSplit x(k.call.operand(0).shape, k.call.attrs.get_int("axis"));
  const int64_t count = k.operands[1].elements(), bytes = x.inner * dtype_bytes(k.call.operand(0).dtype);
  const bool inside =
      k.call.operand(1).dtype == DType::I64
          ? cpu::gather_rows(k.results[0].data, k.operands[0].data, k.in<int64_t>(1), x.outer, x.length, count, bytes)
          : cpu::gather_rows(k.results[0].data, k.operands[0].data, k.in<int32_t>(1), x.outer, x.length, count, bytes);
  return inside ? Status::success() : bad_index(x.length);
}

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return (call.operand(0).dtype == DType::I64 || call.operand(0).dtype == DType::I32) && results[0].dtype == DType::F32;
}

Status launch_gather_grad(const KernelCall& k) {
  const AxisSplit dx(k.results[0].type.shape, k.call.attrs.get_int("axis"));
  const int64_t count = k.operands[0].elements();
  auto add = [&](const auto* indices) {
    return cpu::gather_rows_grad(k.out<float>(0), k.in<float>(1), k.in<float>(2), indices, dx.outer, dx.length, count,
                                 dx.inner);
  };
  const bool inside = k.call.operand(0).dtype == DType::I64 ? add(k.in<int64_t>(0)) : add(k.in<int32_t>(0));
  return inside ? Status::success() : bad_index(dx.length);
}

constexpr CpuKernel kernels[] = {
    {"gather", "rows", accepts_gather, launch_gather},
    {"gather_grad", "columns", accepts_gather_grad, launch_gather_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> index_kernels() { return kernels; }

}  // namespace plimsoll
