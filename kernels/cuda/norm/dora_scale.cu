#include "kernels/cuda/norm/dora_scale.h"

#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/norm/dora_scale_mma.h"

// Serves what the matrix units do not take: rows of any length and any rank. Reads w once. A thread holds a strip of
// the change b a in registers, so that an element of either factor serves 16 or 32 sums: b's ranks pass through shared
// memory, and a stays in the L2 cache. Sums are f32 in a fixed order.

namespace plimsoll::cuda {
namespace {

constexpr int strip = 16, staged_ranks = 64;

// Makes staged[r][i] the number of rank first + r of output first_output + i, 0 beyond the last of either.
template <int count, int threads>
__device__ void stage(float (&staged)[staged_ranks][count], const DoraScale& call, int64_t first_output,
                      int64_t first_rank) {
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < count * staged_ranks; at += threads) {
    const int64_t output = first_output + at / staged_ranks, rank = first_rank + at % staged_ranks;
    const bool is_inside = output < call.outputs && rank < call.rank;
    staged[at % staged_ranks][at / staged_ranks] = is_inside ? call.b[output * call.rank + rank] : 0.0f;
  }
  __syncthreads();
}

__device__ void store_output(const DoraScale& call, int64_t output, float squares) {
  const float norm = sqrtf(squares);
  call.norms[output] = norm;
  call.y[output] = call.magnitude[output] / norm;
}

// A block has 16 outputs, and a thread two inputs of each at a time.
constexpr int outputs_threads = 256;

template <typename T>
__global__ void __launch_bounds__(outputs_threads) dora_scale_by_outputs(const DoraScale call) {
  constexpr int inputs_at_once = 2;
  __shared__ float b[staged_ranks][strip];
  __shared__ float partial[outputs_threads / warp_threads][strip];
  const int64_t first_output = int64_t{blockIdx.x} * strip;
  float sums[strip] = {};
  for (int64_t first = 0; first < call.inputs; first += inputs_at_once * outputs_threads) {
    const int64_t input = first + threadIdx.x;
    T w[inputs_at_once][strip];
    float change[inputs_at_once][strip] = {};
#pragma unroll
    for (int k = 0; k < inputs_at_once; ++k)
#pragma unroll
      for (int i = 0; i < strip; ++i) {
        const int64_t at = input + k * outputs_threads, output = first_output + i;
        const bool is_inside = at < call.inputs && output < call.outputs;
        w[k][i] = is_inside ? static_cast<const T*>(call.w)[output * call.inputs + at] : narrow<T>(0.0f);
      }
    for (int64_t first_rank = 0; first_rank < call.rank; first_rank += staged_ranks) {
      if (first == 0 || call.rank > staged_ranks) stage<strip, outputs_threads>(b, call, first_output, first_rank);
      const int ranks = static_cast<int>(min(call.rank - first_rank, int64_t{staged_ranks}));
      for (int r = 0; r < ranks; ++r) {
        const float* const a = call.a + (first_rank + r) * call.inputs;
        float of_input[inputs_at_once];
#pragma unroll
        for (int k = 0; k < inputs_at_once; ++k) {
          const int64_t at = input + k * outputs_threads;
          of_input[k] = at < call.inputs ? a[at] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < strip; ++i)
#pragma unroll
          for (int k = 0; k < inputs_at_once; ++k) change[k][i] += b[r][i] * of_input[k];
      }
    }
#pragma unroll
    for (int k = 0; k < inputs_at_once; ++k)
#pragma unroll
      for (int i = 0; i < strip; ++i) {
        const float adapted = widen(w[k][i]) + call.scale * change[k][i];
        sums[i] += adapted * adapted;
      }
  }
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int i = 0; i < strip; ++i) {
    const float sum = warp_reduce(sums[i], Add());
    if (lane == 0) partial[warp][i] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= strip || first_output + threadIdx.x >= call.outputs) return;
  float squares = 0;
  for (int i = 0; i < outputs_threads / warp_threads; ++i) squares += partial[i][threadIdx.x];
  store_output(call, first_output + threadIdx.x, squares);
}

// A block has 32 outputs, one for each lane, and a warp 16 inputs of them at a time.
constexpr int inputs_threads = 512, inputs_warps = inputs_threads / warp_threads;

template <typename T, bool has_vectors>
__global__ void __launch_bounds__(inputs_threads) dora_scale_by_inputs(const DoraScale call) {
  __shared__ float b[staged_ranks][warp_threads];
  __shared__ float partial[inputs_warps][warp_threads];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int64_t first_output = int64_t{blockIdx.x} * warp_threads, output = first_output + lane;
  float sum = 0;
  for (int64_t first = 0; first < call.inputs; first += strip * inputs_warps) {
    const int64_t input = first + warp * strip;
    T w[strip];
    float change[strip] = {};
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      const bool is_inside = input + i < call.inputs && output < call.outputs;
      w[i] = is_inside ? static_cast<const T*>(call.w)[(input + i) * call.outputs + output] : narrow<T>(0.0f);
    }
    for (int64_t first_rank = 0; first_rank < call.rank; first_rank += staged_ranks) {
      if (first == 0 || call.rank > staged_ranks)
        stage<warp_threads, inputs_threads>(b, call, first_output, first_rank);
      const int ranks = static_cast<int>(min(call.rank - first_rank, int64_t{staged_ranks}));
      for (int r = 0; r < ranks; ++r) {
        const float* const a = call.a + (first_rank + r) * call.inputs;
        const float of_output = b[r][lane];
#pragma unroll
        for (int i = 0; i < strip; i += 4) {
          Vector<float, 4> of_inputs{};
          if (has_vectors) {
            if (input + i < call.inputs) of_inputs = load_vector<4>(a + input + i);
          } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) of_inputs.at[k] = input + i + k < call.inputs ? a[input + i + k] : 0.0f;
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) change[i + k] += of_output * of_inputs.at[k];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      const float adapted = widen(w[i]) + call.scale * change[i];
      sum += adapted * adapted;
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || output >= call.outputs) return;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < inputs_warps; ++i) squares += partial[i][lane];
  store_output(call, output, squares);
}

template <typename T>
cudaError_t launch(const DoraScale& call, cudaStream_t stream) {
  auto blocks = [&](int64_t outputs) { return static_cast<unsigned>((call.outputs + outputs - 1) / outputs); };
  const bool has_vectors = call.inputs % 4 == 0 && reinterpret_cast<uintptr_t>(call.a) % 16 == 0;
  if (call.outputs == 0) return cudaSuccess;
  if (call.by_outputs)
    dora_scale_by_outputs<T><<<blocks(strip), outputs_threads, 0, stream>>>(call);
  else if (has_vectors)
    dora_scale_by_inputs<T, true><<<blocks(warp_threads), inputs_threads, 0, stream>>>(call);
  else
    dora_scale_by_inputs<T, false><<<blocks(warp_threads), inputs_threads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dora_scale(const DoraScale& call, cudaStream_t stream) {
  if (accepts_dora_mma(call)) return dora_scale_mma(call, stream);
  if (call.w_type == Scalar::F32) return launch<float>(call, stream);
  if (call.w_type == Scalar::BF16) return launch<bf16>(call, stream);
  if (call.w_type == Scalar::F16) return launch<f16>(call, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
