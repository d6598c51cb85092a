#include "kernels/cpu/pool/pool.h"
#include "runtime/cpu/kernels_families.h"

#include <limits>

namespace plimsoll {
namespace {

cpu::PoolShape pool_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  cpu::PoolShape shape{.planes = x[0] * x[1], .count_include_pad = attrs.get_int("count_include_pad") != 0};
  llvm::ArrayRef<int64_t> kernel = attrs.get_ints("kernel"), strides = attrs.get_ints("strides"),
                          dilations = attrs.get_ints("dilations"), pads = attrs.get_ints("pads");
  const int rank = static_cast<int>(x.size()) - 2, missing = 3 - rank;
  for (int to = 0; to < 3; ++to) {
    const int d = to - missing;
    const bool there = d >= 0;
    shape.input[to] = there ? x[d + 2] : 1;
    shape.output[to] = there ? y[d + 2] : 1;
    shape.kernel[to] = there ? kernel[d] : 1;
    shape.strides[to] = there && !strides.empty() ? strides[d] : 1;
    shape.dilations[to] = there && !dilations.empty() ? dilations[d] : 1;
    shape.pads_begin[to] = there && !pads.empty() ? pads[d] : 0;
    shape.pads_end[to] = there && !pads.empty() ? pads[d + rank] : 0;
  }
  return shape;
}

// Positions in a plane are kept as i32, and a plane's elements are neighbours.
bool accepts_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t limit = std::numeric_limits<int32_t>::max();
  return floats_are_f32(call, results) && !call.attrs.get_int("channels_last") && call.operand(0).elements() <= limit &&
         results[0].elements() <= limit;
}

bool accepts_row_major_indices(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_pool(call, results) && results[0].dtype == DType::F32 && call.attrs.get_int("storage_order") == 0;
}

bool accepts_max_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_pool(call, results) && results[0].dtype == DType::F32;
}

Status launch_max_pool(const KernelCall& k) {
  const cpu::PoolShape shape = pool_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape);
  if (k.call.attrs.get_int("choices"))
    cpu::max_pool_with_choices(shape, k.out<float>(0), k.out<uint8_t>(1), k.in<float>(0));
  else
    cpu::max_pool(shape, k.out<float>(0), k.results.size() > 1 ? k.out<int64_t>(1) : nullptr, k.in<float>(0));
  return Status::success();
}

Status launch_max_pool_grad(const KernelCall& k) {
  const cpu::PoolShape shape = pool_of(k.call.attrs, k.results[0].type.shape, k.call.operand(1).shape);
  if (k.call.operand(0).dtype == DType::U8)
    cpu::max_pool_grad_of_choices(shape, k.out<float>(0), k.in<uint8_t>(0), k.in<float>(1));
  else
    cpu::max_pool_grad(shape, k.out<float>(0), k.in<float>(0), k.in<float>(1));
  return Status::success();
}

Status launch_average_pool(const KernelCall& k) {
  cpu::average_pool(pool_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape), k.out<float>(0),
                    k.in<float>(0));
  return Status::success();
}

Status launch_average_pool_grad(const KernelCall& k) {
  cpu::average_pool_grad(pool_of(k.call.attrs, k.results[0].type.shape, k.call.operand(0).shape), k.out<float>(0),
                         k.in<float>(0));
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {"max_pool", "planes", accepts_max_pool, launch_max_pool},
    {"max_pool_with_indices", "planes", accepts_row_major_indices, launch_max_pool},
    {"max_pool_grad", "planes", accepts_pool, launch_max_pool_grad},
    {"average_pool", "planes", accepts_pool, launch_average_pool},
    {"average_pool_grad", "planes", accepts_pool, launch_average_pool_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> pool_kernels() { return kernels; }

}  // namespace plimsoll
