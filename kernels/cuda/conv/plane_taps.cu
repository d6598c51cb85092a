#include "kernels/cuda/conv/plane_taps.cuh"
#include "kernels/cuda/conv/plane_taps_convolution.h"

// y of x: a product of 16 numbers of a run by all taps by 16 channels for each pixel. Taps are rows of the slice in
// shared memory at any distance, which ldmatrix gathers; weights stay in registers. x is read once for each slice, y
// written once.

namespace plimsoll::cuda {
namespace {

template <typename T, int tap_tiles>
__global__ void __launch_bounds__(PlaneTaps::threads, 2)
    plane_taps_kernel(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                      const __grid_constant__ PlaneTaps p) {
  extern __shared__ uint4 shared[];
  T* const slice = reinterpret_cast<T*>(shared);
  const PlaneSlice mine(p, static_cast<int>(blockIdx.x));
  mine.copy(slice, x, p);

  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int g = lane / 4, t = lane % 4, taps = p.taps();
  RightFragments weights[tap_tiles];
#pragma unroll
  for (int i = 0; i < tap_tiles; ++i)
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const T* of_channel = w + channel_of_column(g, word / 2) * taps;
      const int tap = i * 16 + word % 2 * 8 + 2 * t;
      weights[i].at[word] = packed_pair<T>(tap < taps ? widen(of_channel[tap]) : 0.0f,
                                           tap + 1 < taps ? widen(of_channel[tap + 1]) : 0.0f);
    }
  float first[2][2] = {};
  if (bias)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) first[half][i] = widen(bias[channel_of_column(2 * t + i, half)]);

  const TapPlaces<tap_tiles> places(p);
  const auto pixels = static_cast<int>(p.pixels());
  WarpPixels at(p);
  T* to = y + ((mine.image * p.pixels() + at.pixel) * p.run + mine.first + at.number + g) * PlaneTaps::channels + 4 * t;
  const int64_t to_next = int64_t{at.step} * p.run * PlaneTaps::channels;
  wait_for_copies<0>();
  __syncthreads();

  for (; at.pixel < pixels; at.next(), to += to_next) {
    LeftFragment numbers[tap_tiles];
#pragma unroll
    for (int i = 0; i < tap_tiles; ++i) load_matrices_transposed(numbers[i].at, slice + at.at + places.at[i]);
    float sums[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[half][i] = first[half][i % 2];
#pragma unroll
    for (int i = 0; i < tap_tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_add<T>(sums[half], numbers[i], weights[i], half);
#pragma unroll
    for (int row = 0; row < 2; ++row)
      *reinterpret_cast<uint2*>(to + row * 8 * PlaneTaps::channels) =
          make_uint2(packed_pair<T>(sums[0][2 * row], sums[0][2 * row + 1]),
                     packed_pair<T>(sums[1][2 * row], sums[1][2 * row + 1]));
  }
}

template <typename T>
cudaError_t run(void* y, const void* x, const void* w, const void* bias, const PlaneTaps& p, cudaStream_t stream) {
  const auto kernel = p.tap_tiles() == 2 ? plane_taps_kernel<T, 2> : plane_taps_kernel<T, PlaneTaps::max_taps / 16>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.slice_bytes());
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(p.slices()), PlaneTaps::threads, p.slice_bytes(), stream>>>(
      static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(bias), p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t plane_taps(Scalar type, void* y, const void* x, const void* w, const void* bias, const PlaneTaps& sizes,
                       cudaStream_t stream) {
  return type == Scalar::BF16 ? run<bf16>(y, x, w, bias, sizes, stream) : run<f16>(y, x, w, bias, sizes, stream);
}

}  // namespace plimsoll::cuda
