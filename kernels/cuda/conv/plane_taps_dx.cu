#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/plane_taps.cuh"
#include "kernels/cuda/conv/plane_taps_convolution.h"

// dx of dy: a product of 16 numbers of a run by 16 channels by 8 columns of dx for each pixel of dy and row of taps.
// The weights of a pixel that lies d columns from the first one are a band of taps, which all warps read from shared
// memory. Sums of as many rows as there are rows of taps stay in a warp's registers; a row of dy completes one of them.
// dy is read once and a half, the second time mostly from the cache, dx written once.

namespace plimsoll::cuda {
namespace {

constexpr int pixels_together = 4;

// Right operands of all rows of taps and distances, a pair of words for each thread of a warp. The weights themselves
// lie behind them.
template <typename T>
__device__ void fill_tap_bands(uint2* to, const T* w, const PlaneTaps& p, int tap_rows) {
  const int read = p.read_columns(), all = tap_rows * read * warp_threads, taps = p.taps();
  T* const copies = reinterpret_cast<T*>(to + all);
  for (int i = static_cast<int>(threadIdx.x); i < PlaneTaps::channels * taps; i += PlaneTaps::threads) copies[i] = w[i];
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += PlaneTaps::threads) {
    const int row = i / warp_threads / read, distance = i / warp_threads - row * read;
    // Columns of dy begin kernel - 1 - pad in front of the first one of dx.
    const int column = lane / 4 + p.kernel[1] - 1 - distance;
    const bool is_tap = row < p.kernel[0] && column >= 0 && column < p.kernel[1];
    const T* const of_tap = copies + lane % 4 * 4 * taps + row * p.kernel[1] + column;
    const auto weight = [&](int channel) { return is_tap ? widen(of_tap[channel * taps]) : 0.0f; };
    to[i] = make_uint2(packed_pair<T>(weight(0), weight(1)), packed_pair<T>(weight(2), weight(3)));
  }
  __syncthreads();
}

// What a warp has of an image.
struct WarpColumns {
  int64_t image;
  int number, column;          // of the run, and of dx: the first ones
  int first, end, unit_count;  // columns of dy that it reads, and fours of them

  __device__ WarpColumns(const PlaneTaps& p, int item) {
    const int column_tiles = p.column_tiles(), tiles = p.run / PlaneTaps::tile;
    column = item % column_tiles * PlaneTaps::columns;
    number = item / column_tiles % tiles * PlaneTaps::tile;
    image = item / column_tiles / tiles;
    first = max(0, column + p.pad[1] - p.kernel[1] + 1);
    end = min(p.y[1], column + p.pad[1] + PlaneTaps::columns);
    unit_count = max((end - first + pixels_together - 1) / pixels_together, 1);
  }
};

template <typename T, int tap_rows>
__global__ void __launch_bounds__(PlaneTaps::threads, 2)
    plane_taps_dx_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ w,
                         const __grid_constant__ PlaneTaps p) {
  extern __shared__ uint2 weights[];
  fill_tap_bands(weights, w, p, tap_rows);
  const int64_t item = int64_t{blockIdx.x} * PlaneTaps::warps + threadIdx.x / warp_threads;
  if (item >= p.warp_items()) return;
  const WarpColumns mine(p, static_cast<int>(item));
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, g = lane / 4, t = lane % 4;
  const T* const from = dy + (mine.image * p.pixels() * p.run + mine.number + g) * PlaneTaps::channels + 4 * t;
  T* const to = dx + mine.image * p.x[0] * p.x[1] * p.run + mine.number + 2 * t;

  const auto load = [&](LeftFragment(&pixels)[pixels_together], int row, int unit) {
#pragma unroll
    for (int i = 0; i < pixels_together; ++i) {
      const int column = mine.first + unit * pixels_together + i;
      const bool inside = row < p.y[0] && column < mine.end;
      const T* const at = from + (int64_t{row} * p.y[1] + column) * p.run * PlaneTaps::channels;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 channels =
            inside ? __ldg(reinterpret_cast<const uint2*>(at + half * 8 * PlaneTaps::channels)) : make_uint2(0, 0);
        pixels[i].at[half] = channels.x, pixels[i].at[2 + half] = channels.y;
      }
    }
  };

  float sums[tap_rows][4] = {};
  // Writes row `row` of dx and makes place for the next one.
  const auto finish = [&](int row) {
    if (row >= 0 && row < p.x[0]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t word = packed_pair<T>(sums[0][2 * half], sums[0][2 * half + 1]);
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(word) : "r"(word));
        if (mine.column + g < p.x[1])
          *reinterpret_cast<uint32_t*>(to + (int64_t{row} * p.x[1] + mine.column + g) * p.run + 8 * half) = word;
      }
    }
#pragma unroll
    for (int i = 0; i < tap_rows; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[i][k] = i + 1 < tap_rows ? sums[i + 1][k] : 0.0f;
  };

  const int front = mine.first - (mine.column + p.pad[1] - p.kernel[1] + 1);
  LeftFragment pixels[pixels_together], following[pixels_together];
  load(pixels, 0, 0);
  for (int row = 0; row < p.y[0]; ++row) {
    for (int unit = 0; unit < mine.unit_count; ++unit) {
      const bool is_last = unit + 1 == mine.unit_count;
      load(following, row + is_last, is_last ? 0 : unit + 1);
#pragma unroll
      for (int i = 0; i < pixels_together; ++i) {
        const int distance = min(front + unit * pixels_together + i, p.read_columns() - 1);
        const uint2* const of_pixel = weights + distance * warp_threads + lane;
#pragma unroll
        for (int k = 0; k < tap_rows; ++k) {
          const uint2 band = of_pixel[k * p.read_columns() * warp_threads];
          multiply_add<T>(sums[k], pixels[i], RightFragments{{band.x, band.y}}, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < pixels_together; ++i) pixels[i] = following[i];
    }
    finish(row - p.pad[0]);
  }
  for (int k = 0; k < p.kernel[0] - 1; ++k) finish(p.y[0] + k - p.pad[0]);
}

template <typename T>
cudaError_t run(void* dx, const void* dy, const void* w, const PlaneTaps& p, cudaStream_t stream) {
  const auto kernel = p.tap_rows() == 5 ? plane_taps_dx_kernel<T, 5> : plane_taps_dx_kernel<T, PlaneTaps::max_kernel>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.weight_bytes());
      error != cudaSuccess)
    return error;
  const auto blocks = static_cast<unsigned>(divide_up(p.warp_items(), PlaneTaps::warps));
  kernel<<<blocks, PlaneTaps::threads, p.weight_bytes(), stream>>>(static_cast<T*>(dx), static_cast<const T*>(dy),
                                                                   static_cast<const T*>(w), p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t plane_taps_dx(Scalar type, void* dx, const void* dy, const void* w, const PlaneTaps& sizes,
                          cudaStream_t stream) {
  return type == Scalar::BF16 ? run<bf16>(dx, dy, w, sizes, stream) : run<f16>(dx, dy, w, sizes, stream);
}

}  // namespace plimsoll::cuda
