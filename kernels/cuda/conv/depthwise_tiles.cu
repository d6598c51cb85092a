#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/sum_parts.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv, conv_dx and conv_dw without strides on the matrix units. In f32 outside them 7 x 7 taps would take
// longer than the bytes. A product has 8 channels of 16 pixels on the left, two taps side by side, and on the right two
// diagonals of weights: an eighth of it counts, which is still faster. A row of pixels is loaded once for each tap of
// its row and serves all rows of the kernel. x and y move once, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

// A block's tile: which images and columns it has, and where its first row lies.
struct ColumnsPlace {
  int64_t image;
  int row, column;

  __device__ ColumnsPlace(const DepthwiseTiles& t, int item) {
    Digits digits{static_cast<unsigned>(item)};
    column = digits.take(t.column_tiles) * DepthwiseTiles::columns;
    row = digits.take(t.row_tiles) * t.rows;
    image = int64_t{digits.rest} * (t.narrow ? 2 : 1);
  }
};

// Starts the copies of in pixels.
template <typename T>
__device__ void copy_in_async(uint4* to, const T* in, const DepthwiseTiles& t, const ColumnsPlace& place,
                              int first_unit, int units, int64_t batch, int kernel) {
  const int halves = t.narrow ? 2 : 1, half_width = t.tile_width / halves;
  const int64_t channels = int64_t{t.units} * unit_channels;
  for (TileWalk at(t.tile_width, units); at.down < t.rows + kernel - 1; at.next()) {
    const int half = at.across >= half_width ? 1 : 0;
    const int64_t image = place.image + half;
    const int y = place.row + t.first[0] + at.down, x = place.column + t.first[1] + at.across - half * half_width;
    const bool inside = image < batch && y >= 0 && y < t.in[0] && x >= 0 && x < t.in[1];
    const T* from =
        inside ? in + ((image * t.in[0] + y) * t.in[1] + x) * channels + (first_unit + at.unit) * unit_channels : in;
    copy_async(to + (at.down * t.tile_width + at.across) * t.pixel_units + at.unit, from, inside);
  }
}

// Pixel `pixel` of the 16 lies in this column of the tile's first in row.
__device__ inline int column_of(const DepthwiseTiles& t, int pixel) {
  return t.narrow && pixel >= DepthwiseTiles::half_columns ? pixel - DepthwiseTiles::half_columns + t.tile_width / 2
                                                           : pixel;
}

template <typename T, int kernel, bool gradient>
__global__ void __launch_bounds__(depthwise_units* warp_threads, kernel == 7 ? 3 : 4)
    depthwise_tiles_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                           const T* __restrict__ bias, int64_t batch, const __grid_constant__ DepthwiseTiles t) {
  extern __shared__ uint4 shared[];
  constexpr int pairs = (kernel + 1) / 2;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(t.unit_blocks) * t.block_units, split = static_cast<int>(digits.rest);
  const int units = min(t.block_units, t.units - first_unit);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int unit = min(warp, units - 1);
  // Lane 4 n + k has rows 2 k and 2 k + 1 and column n of a right operand: its channel n is on the diagonal or not.
  const int channel = (first_unit + unit) * unit_channels + lane / 4;
  uint32_t taps[kernel][kernel];
#pragma unroll
  for (int i = 0; i < kernel * kernel; ++i) {
    uint32_t weight = 0;
    if (lane / 8 == lane % 4) {
      const int tap = gradient ? kernel * kernel - 1 - i : i;
      uint16_t bits;
      memcpy(&bits, w + int64_t{channel} * (kernel * kernel) + tap, sizeof bits);
      weight = uint32_t{bits} << (lane / 4 % 2 * 16);
    }
    taps[i / kernel][i % kernel] = weight;
  }
  const int out_channel = (first_unit + unit) * unit_channels + lane % 4 * 2;
  const int64_t channels = int64_t{t.units} * unit_channels, out_line = t.out[1] * channels;
  const uint4* from = shared + column_of(t, lane % 16) * t.pixel_units + unit;
  const int second = lane / 16 * t.pixel_units, row_units = t.tile_width * t.pixel_units;

  for (int item = split; item < t.items; item += static_cast<int>(t.splits)) {
    const ColumnsPlace place(t, item);
    copy_in_async(shared, in, t, place, first_unit, units, batch, kernel);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const int rows = warp < units ? min(t.rows, t.out[0] - place.row) : 0, in_rows = rows > 0 ? rows + kernel - 1 : 0;
    float sums[kernel][4] = {};  // of out rows, by their number modulo kernel
    for (int first_row = 0; first_row < in_rows; first_row += kernel) {
#pragma unroll
      for (int step = 0; step < kernel; ++step) {
        const int in_row = first_row + step;
        if (in_row >= in_rows) break;
        LeftFragment left[pairs];
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair)
          load_matrices(left[pair].at,
                        from + in_row * row_units + 2 * pair * t.pixel_units + (2 * pair + 1 < kernel ? second : 0));
          // Neighbouring products add to different sums, so that none waits for the one before.
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
          for (int down = 0; down < kernel; ++down) {
            if (in_row < down || in_row - down >= rows) continue;
            float(&sum)[4] = sums[(step - down + kernel) % kernel];
            if (2 * pair + 1 < kernel)
              multiply_add<T>(sum, left[pair], {taps[down][2 * pair], taps[down][(2 * pair + 1) % kernel], 0, 0}, 0);
            else
              multiply_add_half<T>(sum, left[pair], {taps[down][2 * pair], 0, 0, 0}, 0);
          }
        const int whole_row = in_row - (kernel - 1);
        if (whole_row < 0) continue;
        float(&sum)[4] = sums[(step + 1) % kernel];
        float added[2] = {};
        if (bias) added[0] = widen(bias[out_channel]), added[1] = widen(bias[out_channel + 1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t image = place.image + (t.narrow ? half : 0);
          const int x = place.column + lane / 4 + (t.narrow ? 0 : half * 8);
          const uint32_t word = packed_pair<T>(sum[2 * half] + added[0], sum[2 * half + 1] + added[1]);
          if (image < batch && x < t.out[1])
            *reinterpret_cast<uint32_t*>(out + (image * t.out[0] + place.row + whole_row) * out_line + x * channels +
                                         out_channel) = word;
          sum[2 * half] = sum[2 * half + 1] = 0;
        }
      }
    }
    __syncthreads();
  }
}

// A product has two taps of 8 channels of x on the left, [16, 16 pixels], and the channels of dy on the right: dw is on
// the diagonals of its two halves.
template <typename T, int kernel>
__global__ void __launch_bounds__(depthwise_units* warp_threads, 2)
    depthwise_tiles_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                              int64_t batch, const __grid_constant__ DepthwiseWeightTiles t) {
  extern __shared__ uint4 shared[];
  constexpr int pairs = (kernel + 1) / 2;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(t.unit_blocks) * t.block_units, split = static_cast<int>(digits.rest);
  const int units = min(t.block_units, t.units - first_unit);
  const int64_t channels = int64_t{t.units} * unit_channels;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int unit = min(warp, units - 1), matrix = lane / 8;
  uint4* dy_tile = shared + t.image_units;

  const int x_pixel = matrix / 2 * 8 + lane % 8, dy_pixel = matrix % 2 * 8 + lane % 8;
  const uint4* of_x = shared + column_of(t, x_pixel) * t.pixel_units + unit;
  const uint4* of_dy = dy_tile + dy_pixel * t.pixel_units + unit;
  const int second = matrix % 2 * t.pixel_units, row_units = t.tile_width * t.pixel_units;

  float sums[kernel][pairs][4] = {};
  for (int item = split; item < t.items; item += static_cast<int>(t.splits)) {
    const ColumnsPlace place(t, item);
    const int rows = min(t.rows, t.out[0] - place.row);
    copy_in_async(shared, x, t, place, first_unit, units, batch, kernel);
    for (TileWalk at(DepthwiseTiles::columns, units); at.down < rows; at.next()) {
      const int64_t image = place.image + (t.narrow ? at.across / 8 : 0);
      const int column = place.column + (t.narrow ? at.across % 8 : at.across);
      const bool inside = image < batch && column < t.out[1];
      const T* from = inside ? dy + ((image * t.out[0] + place.row + at.down) * t.out[1] + column) * channels +
                                   (first_unit + at.unit) * unit_channels
                             : dy;
      copy_async(dy_tile + (at.down * DepthwiseTiles::columns + at.across) * t.pixel_units + at.unit, from, inside);
    }
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    RightFragments dy_rows[kernel];  // by their number modulo kernel
    for (int first_row = 0; warp < units && first_row < rows + kernel - 1; first_row += kernel) {
#pragma unroll
      for (int step = 0; step < kernel; ++step) {
        const int in_row = first_row + step;
        if (in_row >= rows + kernel - 1) break;
        if (in_row < rows)
          load_matrices_transposed(dy_rows[step].at, of_dy + in_row * DepthwiseTiles::columns * t.pixel_units);
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair) {
          LeftFragment left;
          load_matrices_transposed(
              left.at, of_x + in_row * row_units + 2 * pair * t.pixel_units + (2 * pair + 1 < kernel ? second : 0));
#pragma unroll
          for (int down = 0; down < kernel; ++down)
            if (in_row - down >= 0 && in_row - down < rows)
              multiply_add<T>(sums[down][pair], left, dy_rows[(step - down + kernel) % kernel], 0);
        }
      }
    }
    __syncthreads();
  }
  if (warp >= units || lane / 8 != lane % 4) return;
  const int channel = (first_unit + unit) * unit_channels + lane / 4;
  float* mine = partial + (int64_t{split} * channels + channel) * (kernel * kernel);
#pragma unroll
  for (int down = 0; down < kernel; ++down)
#pragma unroll
    for (int across = 0; across < kernel; ++across) {
      const float(&sum)[4] = sums[down][across / 2];
      mine[down * kernel + across] = lane / 4 % 2 ? sum[across % 2 * 2 + 1] : sum[across % 2 * 2];
    }
}

template <typename Visit>
cudaError_t with_kernel(int kernel, Visit visit) {
  switch (kernel) {
    case 3: return visit(std::integral_constant<int, 3>());
    case 5: return visit(std::integral_constant<int, 5>());
    case 7: return visit(std::integral_constant<int, 7>());
    default: return cudaErrorInvalidValue;
  }
}

template <bool gradient>
cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias,
                   const ConvolutionSizes& sizes, cudaStream_t stream) {
  const DepthwiseTiles tiles(sizes, gradient);
  if (tiles.blocks() == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>(tiles.image_units) * sizeof(uint4);
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel(sizes.kernel[0], [&](auto size) {
      const auto kernel = depthwise_tiles_kernel<T, decltype(size)::value, gradient>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(tiles.blocks()), tiles.block_units * warp_threads, bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias),
          sizes.batch, tiles);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_tiles(Scalar type, void* y, const void* x, const void* w, const void* bias,
                            const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t depthwise_tiles_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                               cudaStream_t stream) {
  return launch<true>(type, dx, dy, w, nullptr, sizes, stream);
}

cudaError_t depthwise_tiles_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                               const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const DepthwiseWeightTiles tiles(sizes);
  const size_t bytes = static_cast<size_t>(tiles.image_units + tiles.dy_units) * sizeof(uint4);
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_kernel(sizes.kernel[0], [&](auto size) {
      const auto kernel = depthwise_tiles_dw_kernel<T, decltype(size)::value>;
      if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
      kernel<<<static_cast<unsigned>(tiles.splits * tiles.unit_blocks), tiles.block_units * warp_threads, bytes,
               stream>>>(partial, static_cast<const T*>(x), static_cast<const T*>(dy), sizes.batch, tiles);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
    return to == type ? sum_parts(static_cast<T*>(dw), partial, tiles.splits, sizes.weights(), stream)
                      : sum_parts(static_cast<float*>(dw), partial, tiles.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
