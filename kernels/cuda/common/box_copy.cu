#include "kernels/cuda/common/box_copy.cuh"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {
namespace {

// The driver's function, which is asked for so that the library loads where there is no driver.
decltype(&cuTensorMapEncodeTiled) map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned cuda_12 = 12000;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, cuda_12, cudaEnableDefault, &found);
    const bool is_there = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(is_there ? function : nullptr);
  }();
  return encoder;
}

}  // namespace

cudaError_t map_rows(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows, int64_t heads, int64_t depth,
                     int64_t step, int box_rows) {
  const auto encode = map_encoder();
  if (!encode) return cudaErrorNotSupported;
  const auto size = [](int64_t count) { return static_cast<cuuint64_t>(count > 0 ? count : 1); };
  constexpr int64_t bytes = 2;
  const cuuint64_t sizes[] = {size(depth), size(heads), size(rows), size(batch)};
  const cuuint64_t steps[] = {size(depth * bytes), size(step * bytes), size(rows * step * bytes)};
  const cuuint32_t box[] = {box_depth, 1, static_cast<cuuint32_t>(box_rows), 1}, every[] = {1, 1, 1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(tensor), sizes, steps,
                                 box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
