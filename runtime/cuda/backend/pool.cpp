#include "runtime/kernels/pool.h"
#include "kernels/cuda/pool/patches.h"
#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {
namespace {

cuda::PoolShape pool_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const bool channels_last = attrs.get_int("channels_last") != 0;
  return {pool_window<int32_t>(attrs, x, y), x[0], channels_last ? x.back() : x[1], channels_last};
}

bool includes_padding(const CudaCall& k) { return k.call.get_int("count_include_pad") != 0; }

Status launch_max_pool(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y"));
  return launched(
      k, cuda::max_pool(shape, k.in_scalar("x"), k.out("y"), k.out_if_given<uint8_t>("choices"), k.in("x"), k.stream));
}

Status launch_max_pool_with_indices(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y"));
  const bool columns_first = k.call.get_int("storage_order") != 0;
  return launched(k, cuda::max_pool_with_indices(shape, k.in_scalar("x"), k.out("y"), k.out<int64_t>("indices"),
                                                 columns_first, k.in("x"), k.stream));
}

// Where the operand is x, its choices are made first.
Status launch_max_pool_grad(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.attrs(), k.out_shape("dx"), k.in_shape("dy"));
  const auto* choices = k.in<uint8_t>("x");
  if (k.call["x"].dtype != DType::U8) {
    auto* made = static_cast<uint8_t*>(k.workspace);
    if (Status s = launched(k, cuda::max_pool(shape, k.in_scalar("x"), nullptr, made, k.in("x"), k.stream))) return s;
    choices = made;
  }
  return launched(k, cuda::max_pool_grad(shape, k.in_scalar("dy"), k.out("dx"), choices, k.in("dy"), k.stream));
}

Status launch_average_pool(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.attrs(), k.in_shape("x"), k.out_shape("y"));
  return launched(k, cuda::average_pool(shape, k.in_scalar("x"), includes_padding(k), k.out("y"), k.in("x"), k.stream));
}

Status launch_average_pool_grad(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.attrs(), k.out_shape("dx"), k.in_shape("dy"));
  return launched(
      k, cuda::average_pool_grad(shape, k.in_scalar("dy"), includes_padding(k), k.out("dx"), k.in("dy"), k.stream));
}

// Patches have their taps beside their channels.
cuda::PoolShape patches_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  return pool_of(attrs, x, attrs.get_int("channels_last") ? y.drop_back() : y.drop_front());
}

Status launch_unfold(const CudaCall& k) {
  return launched(k, cuda::unfold(patches_of(k.attrs(), k.in_shape("x"), k.out_shape("y")), k.in_scalar("x"),
                                  k.out("y"), k.in("x"), k.stream));
}

Status launch_fold(const CudaCall& k) {
  return launched(k, cuda::fold(patches_of(k.attrs(), k.out_shape("y"), k.in_shape("x")), k.in_scalar("x"), k.out("y"),
                                k.in("x"), k.stream));
}

constexpr CudaLauncher pool_table[] = {
    {op_max_pool, "windows", launch_max_pool},
    {op_max_pool_with_indices, "windows", launch_max_pool_with_indices},
    {op_max_pool_grad, "windows", launch_max_pool_grad},
    {op_average_pool, "windows", launch_average_pool},
    {op_average_pool_grad, "windows", launch_average_pool_grad},
    {op_unfold, "windows", launch_unfold},
    {op_fold, "windows", launch_fold},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> pool_launchers() { return pool_table; }

}  // namespace plimsoll
