#include "kernels/cuda/conv/channel_bias.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace plimsoll::cuda {
namespace {

constexpr int block = 256;

template <typename T>
__global__ void add_bias(T* y, const T* bias, int64_t count, int64_t channels, int64_t inner) {
  const int64_t step = int64_t{gridDim.x} * block;
  for (int64_t i = int64_t{blockIdx.x} * block + threadIdx.x; i < count; i += step)
    y[i] = static_cast<T>(static_cast<float>(y[i]) + static_cast<float>(bias[i / inner % channels]));
}

template <typename T>
void launch(cudaStream_t stream, void* y, const void* bias, int64_t count, int64_t channels, int64_t inner) {
  const int64_t blocks = (count + block - 1) / block;
  add_bias<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), block, 0, stream>>>(
      static_cast<T*>(y), static_cast<const T*>(bias), count, channels, inner);
}

}  // namespace

void add_channel_bias(cudaStream_t stream, Scalar dtype, void* y, const void* bias, int64_t count, int64_t channels,
                      int64_t inner) {
  if (count == 0) return;
  if (dtype == Scalar::BF16)
    launch<__nv_bfloat16>(stream, y, bias, count, channels, inner);
  else if (dtype == Scalar::F16)
    launch<__half>(stream, y, bias, count, channels, inner);
  else
    launch<float>(stream, y, bias, count, channels, inner);
}

}  // namespace plimsoll::cuda
