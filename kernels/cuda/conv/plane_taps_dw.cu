#include "kernels/cuda/conv/plane_taps.cuh"
#include "kernels/cuda/conv/plane_taps_convolution.h"
#include "kernels/cuda/conv/sum_parts.h"

// dw of x and dy: products of 16 channels by 16 numbers of a run by all taps for each pixel, whose sums stay in the
// registers of a warp. Taps are rows of the slice in shared memory; dy goes from memory to registers, where it is
// turned. x is read once for each slice, dy once.

namespace plimsoll::cuda {
namespace {

constexpr int pixels_ahead = 4;  // of dy, that a warp has under way

__device__ inline uint32_t turned_pairs(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

// A thread's numbers of 16 of a run: four channels of two.
struct RunOfChannels {
  uint2 at[2] = {};

  template <typename T>
  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < 2; ++i) at[i] = __ldcs(reinterpret_cast<const uint2*>(from + i * 8 * PlaneTaps::channels));
  }
  __device__ LeftFragment channels_by_numbers() const {
    return {{turned_pairs(at[0].x), turned_pairs(at[0].y), turned_pairs(at[1].x), turned_pairs(at[1].y)}};
  }
};

template <typename T, int tap_tiles>
__global__ void __launch_bounds__(PlaneTaps::threads, 2)
    plane_taps_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                         const __grid_constant__ PlaneTaps p) {
  extern __shared__ uint4 shared[];
  T* const slice = reinterpret_cast<T*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int g = lane / 4, t = lane % 4;
  const TapPlaces<tap_tiles> places(p);
  const auto pixels = static_cast<int>(p.pixels());
  float sums[2 * tap_tiles][4] = {};

  for (int place = static_cast<int>(blockIdx.x); place < static_cast<int>(p.slices());
       place += static_cast<int>(gridDim.x)) {
    const PlaneSlice mine(p, place);
    WarpPixels at(p);
    const T* from =
        dy + ((mine.image * p.pixels() + at.pixel) * p.run + mine.first + at.number + g) * PlaneTaps::channels + 4 * t;
    const int64_t to_next = int64_t{at.step} * p.run * PlaneTaps::channels;
    __syncthreads();  // nobody reads the slice before
    mine.copy(slice, x, p);
    RunOfChannels ahead[pixels_ahead];
#pragma unroll
    for (int i = 0; i < pixels_ahead; ++i, from += to_next)
      if (at.pixel + i * at.step < pixels) ahead[i].load(from);
    wait_for_copies<0>();
    __syncthreads();
    while (at.pixel < pixels) {
#pragma unroll
      for (int i = 0; i < pixels_ahead; ++i) {
        if (at.pixel >= pixels) break;
        const LeftFragment channels = ahead[i].channels_by_numbers();
        if (at.pixel + pixels_ahead * at.step < pixels) ahead[i].load(from);
        from += to_next;
#pragma unroll
        for (int first = 0; first < tap_tiles; first += 2) {
          RightFragments numbers[2];
#pragma unroll
          for (int k = 0; k < 2; ++k) load_matrices(numbers[k].at, slice + at.at + places.at[first + k]);
#pragma unroll
          for (int k = 0; k < 2; ++k)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              multiply_add<T>(sums[2 * (first + k) + half], channels, numbers[k], half);
        }
        at.next();
      }
    }
  }

  // Sums of the warps lie as their threads hold them.
  constexpr int held = 2 * tap_tiles * 4;
  float* const of_warps = reinterpret_cast<float*>(shared);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < held; ++k) of_warps[(warp * held + k) * warp_threads + lane] = sums[k / 4][k % 4];
  __syncthreads();
  const int taps = p.taps();
#pragma unroll
  for (int i = 0; i < held / PlaneTaps::warps; ++i) {
    const int k = warp * (held / PlaneTaps::warps) + i, tap = k / 4 * 8 + 2 * t + k % 2;
    float total = 0;
#pragma unroll
    for (int other = 0; other < PlaneTaps::warps; ++other) total += of_warps[(other * held + k) * warp_threads + lane];
    if (tap < taps)
      partial[(int64_t{blockIdx.x} * PlaneTaps::channels + channel_of_column(g, k % 4 / 2)) * taps + tap] = total;
  }
}

template <typename T>
cudaError_t run(float* partial, const void* x, const void* dy, const PlaneTaps& p, cudaStream_t stream) {
  const auto kernel =
      p.tap_tiles() == 2 ? plane_taps_dw_kernel<T, 2> : plane_taps_dw_kernel<T, PlaneTaps::max_taps / 16>;
  const int shared_bytes = std::max(p.slice_bytes(), p.sums_bytes());
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(p.parts()), PlaneTaps::threads, shared_bytes, stream>>>(
      partial, static_cast<const T*>(x), static_cast<const T*>(dy), p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t plane_taps_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const PlaneTaps& sizes,
                          float* workspace, cudaStream_t stream) {
  if (cudaError_t error =
          type == Scalar::BF16 ? run<bf16>(workspace, x, dy, sizes, stream) : run<f16>(workspace, x, dy, sizes, stream);
      error != cudaSuccess)
    return error;
  return sum_parts(to, dw, workspace, sizes.parts(), PlaneTaps::channels * sizes.taps(), stream);
}

}  // namespace plimsoll::cuda
