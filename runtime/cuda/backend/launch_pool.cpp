#include "kernels/cuda/pool/pool.h"
#include "runtime/cuda/backend/launched.h"

namespace plimsoll {
namespace {

// The entry of an attribute list, or what stands for it where the list or the dimension is missing.
int32_t entry(llvm::ArrayRef<int64_t> list, int64_t i, int64_t otherwise) {
  const bool there = i >= 0 && i < static_cast<int64_t>(list.size());
  return static_cast<int32_t>(there ? list[static_cast<size_t>(i)] : otherwise);
}

cuda::PoolShape pool_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y) {
  const bool channels_last = attrs.get_int("channels_last") != 0;
  const llvm::ArrayRef<int64_t> pads = attrs.get_ints("pads");
  auto spatial = [&](llvm::ArrayRef<int64_t> shape) {
    return channels_last ? shape.drop_front().drop_back() : shape.drop_front(2);
  };
  const auto rank = static_cast<int64_t>(x.size()) - 2, missing = 3 - rank;
  cuda::PoolShape shape{};
  shape.batch = x[0];
  shape.channels = channels_last ? x.back() : x[1];
  shape.channels_last = channels_last;
  for (int64_t to = 0; to < 3; ++to) {
    const int64_t d = to - missing;
    shape.in[to] = entry(spatial(x), d, 1);
    shape.out[to] = entry(spatial(y), d, 1);
    shape.kernel[to] = entry(attrs.get_ints("kernel"), d, 1);
    shape.strides[to] = entry(attrs.get_ints("strides"), d, 1);
    shape.dilations[to] = entry(attrs.get_ints("dilations"), d, 1);
    shape.pads_begin[to] = entry(pads, d, 0);
    shape.pads_end[to] = d >= 0 ? entry(pads, d + rank, 0) : 0;
  }
  return shape;
}

bool includes_padding(const CudaCall& k) { return k.call.attrs.get_int("count_include_pad") != 0; }

Status launch_max_pool(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape);
  uint8_t* choices = k.results.size() > 1 ? k.out<uint8_t>(1) : nullptr;
  return launched(k, cuda::max_pool(shape, k.in_scalar(0), k.out(0), choices, k.in(0), k.stream));
}

Status launch_max_pool_with_indices(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape);
  const bool columns_first = k.call.attrs.get_int("storage_order") != 0;
  return launched(k, cuda::max_pool_with_indices(shape, k.in_scalar(0), k.out(0), k.out<int64_t>(1), columns_first,
                                                 k.in(0), k.stream));
}

// From x, the choices are made first.
Status launch_max_pool_grad(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.call.attrs, k.results[0].type.shape, k.call.operand(1).shape);
  const auto* choices = k.in<uint8_t>(0);
  if (k.call.operand(0).dtype != DType::U8) {
    auto* made = static_cast<uint8_t*>(k.workspace);
    if (Status s = launched(k, cuda::max_pool(shape, k.in_scalar(0), nullptr, made, k.in(0), k.stream))) return s;
    choices = made;
  }
  return launched(k, cuda::max_pool_grad(shape, k.in_scalar(1), k.out(0), choices, k.in(1), k.stream));
}

Status launch_average_pool(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.call.attrs, k.call.operand(0).shape, k.results[0].type.shape);
  return launched(k, cuda::average_pool(shape, k.in_scalar(0), includes_padding(k), k.out(0), k.in(0), k.stream));
}

Status launch_average_pool_grad(const CudaCall& k) {
  const cuda::PoolShape shape = pool_of(k.call.attrs, k.results[0].type.shape, k.call.operand(0).shape);
  return launched(k, cuda::average_pool_grad(shape, k.in_scalar(0), includes_padding(k), k.out(0), k.in(0), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"max_pool", "windows", launch_max_pool},
    {"max_pool_with_indices", "windows", launch_max_pool_with_indices},
    {"max_pool_grad", "windows", launch_max_pool_grad},
    {"average_pool", "windows", launch_average_pool},
    {"average_pool_grad", "windows", launch_average_pool_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_pool_launchers() { return launchers; }

}  // namespace plimsoll
