#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels.h"

// Ops that pick or add slices by index. An index outside its dimension is an error of the data.

namespace plimsoll {
namespace {

Status bad_index(int64_t size) { return model_error("an index is outside a dimension of " + llvm::Twine(size)); }

// Calls body(pointer to the indices), which are i64 or i32.
template <typename Body>
bool with_indices(const CpuCall& k, Body body) {
  return k.call["indices"].dtype == DType::I64 ? body(k.in<int64_t>("indices")) : body(k.in<int32_t>("indices"));
}

bool accepts_gather(const OpCall& call, llvm::ArrayRef<Type>) { return is_label(call["indices"].dtype); }

Status launch_gather(const CpuCall& k) {
  const AxisShape x = split_axis(k.in_shape("x"), k.call.get_int("axis"));
  const int64_t count = k.call["indices"].elements(), bytes = x.inner * k.element_bytes();
  auto pick = [&](const auto* indices) {
    return cpu::gather_rows(k.out("y"), k.in("x"), indices, x.outer, x.length, count, bytes);
  };
  return with_indices(k, pick) ? Status::success() : bad_index(x.length);
}

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_label(call["indices"].dtype) && call["dy"].dtype == DType::F32 && results[0].dtype == DType::F32;
}

Status launch_gather_grad(const CpuCall& k) {
  const AxisShape dx = split_axis(k.out_shape("dx"), k.call.get_int("axis"));
  const int64_t count = k.call["indices"].elements();
  auto add = [&](const auto* indices) {
    return cpu::gather_rows_grad(k.out<float>("dx"), k.in<float>("dy"), k.in<float>("addend"), indices, dx.outer,
                                 dx.length, count, dx.inner);
  };
  return with_indices(k, add) ? Status::success() : bad_index(dx.length);
}

constexpr CpuKernel index_table[] = {
    {op_gather, "rows", accepts_gather, launch_gather},
    {op_gather_grad, "columns", accepts_gather_grad, launch_gather_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> index_kernels() { return index_table; }

}  // namespace plimsoll
