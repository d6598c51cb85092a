#include "kernels/cuda/norm/dora_scale.h"

#include "kernels/cuda/common/element.cuh"

// Reads w once; a is small and stays in the L2 cache. A block has 32 outputs and 8 lanes for each: where w lies by
// outputs, a warp reads 32 inputs of one output at once, else one input of 32 outputs. Sums are f32 in a fixed order.

namespace plimsoll::cuda {
namespace {

constexpr int tile = 32, lanes = 8;

template <typename T>
__global__ void __launch_bounds__(tile* lanes) dora_scale_by_outputs(const DoraScale call) {
  const int64_t output = int64_t{blockIdx.x} * lanes + threadIdx.y;
  if (output >= call.outputs) return;
  const T* w = static_cast<const T*>(call.w) + output * call.inputs;
  const float* b = call.b + output * call.rank;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < call.inputs; i += tile) {
    float change = 0;
    for (int64_t r = 0; r < call.rank; ++r) change += b[r] * call.a[r * call.inputs + i];
    const float adapted = widen(w[i]) + call.scale * change;
    sum += adapted * adapted;
  }
#pragma unroll
  for (int step = tile / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x > 0) return;
  const float norm = sqrtf(sum);
  call.norms[output] = norm;
  call.y[output] = call.magnitude[output] / norm;
}

template <typename T>
__global__ void __launch_bounds__(tile* lanes) dora_scale_by_inputs(const DoraScale call) {
  __shared__ float sums[lanes][tile];
  const int64_t output = int64_t{blockIdx.x} * tile + threadIdx.x;
  float sum = 0;
  if (output < call.outputs) {
    const float* b = call.b + output * call.rank;
    for (int64_t i = threadIdx.y; i < call.inputs; i += lanes) {
      float change = 0;
      for (int64_t r = 0; r < call.rank; ++r) change += b[r] * call.a[r * call.inputs + i];
      const float adapted = widen(static_cast<const T*>(call.w)[i * call.outputs + output]) + call.scale * change;
      sum += adapted * adapted;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || output >= call.outputs) return;
  sum = 0;
#pragma unroll
  for (int lane = 0; lane < lanes; ++lane) sum += sums[lane][threadIdx.x];
  const float norm = sqrtf(sum);
  call.norms[output] = norm;
  call.y[output] = call.magnitude[output] / norm;
}

template <typename T>
cudaError_t launch(const DoraScale& call, cudaStream_t stream) {
  const dim3 block(tile, lanes);
  const int64_t per_block = call.by_outputs ? lanes : tile;
  const auto blocks = static_cast<unsigned>((call.outputs + per_block - 1) / per_block);
  if (call.by_outputs)
    dora_scale_by_outputs<T><<<blocks, block, 0, stream>>>(call);
  else
    dora_scale_by_inputs<T><<<blocks, block, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dora_scale(const DoraScale& call, cudaStream_t stream) {
  if (call.w_type == Scalar::F32) return launch<float>(call, stream);
  if (call.w_type == Scalar::BF16) return launch<bf16>(call, stream);
  if (call.w_type == Scalar::F16) return launch<f16>(call, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
