#include "kernels/cpu/pool/pool.h"
#include "runtime/cpu/kernels.h"
#include "runtime/kernels/pool.h"

#include <limits>

namespace plimsoll {
namespace {

cpu::PoolShape pool_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  return {pool_window<int64_t>(attrs, x, y), x[0] * x[1], attrs.get_int("count_include_pad") != 0};
}

// Positions in a plane are kept as i32, and a plane's elements are neighbours.
bool accepts_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t limit = std::numeric_limits<int32_t>::max();
  return floats_are_f32(call, results) && !call.attrs.get_int("channels_last") && call.operand(0).elements() <= limit &&
         results[0].elements() <= limit;
}

bool accepts_row_major_indices(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_pool(call, results) && results[0].dtype == DType::F32 && call.get_int("storage_order") == 0;
}

bool accepts_max_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_pool(call, results) && results[0].dtype == DType::F32;
}

Status launch_max_pool(const CpuCall& k) {
  const cpu::PoolShape shape = pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y"));
  if (k.call.gives("choices"))
    cpu::max_pool_with_choices(shape, k.out<float>("y"), k.out<uint8_t>("choices"), k.in<float>("x"));
  else
    cpu::max_pool(shape, k.out<float>("y"), nullptr, k.in<float>("x"));
  return Status::success();
}

Status launch_max_pool_with_indices(const CpuCall& k) {
  cpu::max_pool(pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y")), k.out<float>("y"), k.out<int64_t>("indices"),
                k.in<float>("x"));
  return Status::success();
}

Status launch_max_pool_grad(const CpuCall& k) {
  const cpu::PoolShape shape = pool_of(k.attrs(), k.out_shape("dx"), k.in_shape("dy"));
  if (k.call["x"].dtype == DType::U8)
    cpu::max_pool_grad_of_choices(shape, k.out<float>("dx"), k.in<uint8_t>("x"), k.in<float>("dy"));
  else
    cpu::max_pool_grad(shape, k.out<float>("dx"), k.in<float>("x"), k.in<float>("dy"));
  return Status::success();
}

Status launch_average_pool(const CpuCall& k) {
  cpu::average_pool(pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y")), k.out<float>("y"), k.in<float>("x"));
  return Status::success();
}

Status launch_average_pool_grad(const CpuCall& k) {
  cpu::average_pool_grad(pool_of(k.attrs(), k.out_shape("dx"), k.in_shape("dy")), k.out<float>("dx"),
                         k.in<float>("dy"));
  return Status::success();
}

constexpr CpuKernel pool_table[] = {
    {op_max_pool, "planes", accepts_max_pool, launch_max_pool},
    {op_max_pool_with_indices, "planes", accepts_row_major_indices, launch_max_pool_with_indices},
    {op_max_pool_grad, "planes", accepts_pool, launch_max_pool_grad},
    {op_average_pool, "planes", accepts_pool, launch_average_pool},
    {op_average_pool_grad, "planes", accepts_pool, launch_average_pool_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> pool_kernels() { return pool_table; }

}  // namespace plimsoll
