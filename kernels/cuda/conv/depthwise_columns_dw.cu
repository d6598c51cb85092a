#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/depthwise_rows.cuh"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// 3 x 3 depthwise conv_dw without strides in 32-bit arithmetic: a thread goes down 7 columns of dy and the columns of x
// that their taps meet with two channels, and has all their sums and the last rows of dy in registers. Reads x and dy
// once, but for the rims of columns' tiles and the rows between two parts of the run.

namespace plimsoll::cuda {
namespace {

constexpr int stages = DepthwiseColumns::stages, strip = DepthwiseColumns::strip;
constexpr int strip_threads = DepthwiseColumns::strip_threads, slots = DepthwiseColumns::slots;
constexpr int pixel_units = DepthwiseColumns::block_units, pixel_words = pixel_units * 4;
constexpr int kernel = DepthwiseColumns::kernel, taps = kernel * kernel;

// Copies 4 or 8 bytes, or writes zeros.
template <int bytes>
__device__ void copy_piece_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes),
               "r"(inside ? bytes : 0)
               : "memory");
}

// The units of a row that a thread copies: one of each of two pixels. Of a unit the first `channels` are there.
template <typename T, int piece>
struct RowCopies {
  PixelColumn<const T> near, far;
  bool has_near, has_far;
  int line, far_units, channels;

  // By all threads at once: `to` is where their unit of the first row goes, `number` the row's.
  __device__ void start(uint4* to, int number) const {
    if (has_near) copy(to, near, number);
    if (has_far) copy(to + far_units, far, number);
  }

 private:
  __device__ void copy(uint4* to, const PixelColumn<const T>& column, int number) const {
    if constexpr (piece == unit_channels)
      copy_in_line_async(to, column.at(number, line), column.has(number));
    else
#pragma unroll
      for (int first = 0; first < unit_channels; first += piece)
        copy_piece_async<piece * 2>(reinterpret_cast<uint8_t*>(to) + first * 2, column.at(number, line) + first,
                                    column.has(number) && first < channels);
  }
};

// Copies of rows of `pixels` pixels, of which column_of(pixel) gives the column.
template <int piece, typename T, typename ColumnOf>
__device__ RowCopies<T, piece> row_copies(int pixels, int line, int channels, ColumnOf column_of) {
  const int first = static_cast<int>(threadIdx.x) / pixel_units, step = static_cast<int>(blockDim.x) / pixel_units;
  return {column_of(first), column_of(first + step), first < pixels, first + step < pixels, line, step * pixel_units,
          channels};
}

// Loads pairs of channels of neighbouring pixels.
template <typename T, int count>
__device__ void load_pixels(float (&pixels)[count][2], const uint32_t* from) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    T pair[2];
    memcpy(pair, from + i * pixel_words, sizeof pair);
    pixels[i][0] = widen(pair[0]), pixels[i][1] = widen(pair[1]);
  }
}

template <typename T, int piece>
__global__ void __launch_bounds__(DepthwiseColumns::max_threads, 1)
    depthwise_columns_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                                int batch, const __grid_constant__ DepthwiseColumns p) {
  let_next_launch_begin();
  extern __shared__ __align__(128) uint4 shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads;
  const int threads = static_cast<int>(blockDim.x), unit = thread % pixel_units;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * DepthwiseColumns::block_units;
  const unsigned part = digits.rest;
  const int first_column = digits.take(p.column_tiles) * p.width;
  const int first_row = static_cast<int>(digits.rest) * p.block_rows;
  const int rows = static_cast<int>(min(int64_t{p.block_rows}, p.run_rows - first_row));
  const int channels = p.channels, first_channel = first_unit * unit_channels;
  const int steps = (rows + 2 * (kernel - 1)) / kernel;
  const int x_units = p.row_pixels * pixel_units, dy_units = p.dy_pixels * pixel_units;
  const int stage_units = kernel * (x_units + dy_units);

  const int channel = first_channel + unit * unit_channels;
  const bool has_unit = channel < channels;
  const auto x_copies = row_copies<piece, T>(p.row_pixels, p.in[1] * channels, channels - channel, [&](int pixel) {
    const int side = min(pixel / p.period, p.images - 1);
    return PixelColumn<const T>(x, p.in, side, first_column + p.first[1] + pixel - side * p.period,
                                has_unit && pixel < p.row_pixels, batch, channels, channel);
  });
  const auto dy_copies = row_copies<piece, T>(p.dy_pixels, p.out[1] * channels, channels - channel, [&](int pixel) {
    const int image_pixels = p.image_strips * strip, side = pixel / image_pixels;
    const int of_image = pixel - side * image_pixels;
    return PixelColumn<const T>(dy, p.out, side, first_column + of_image,
                                has_unit && pixel < p.dy_pixels && of_image < p.width, batch, channels, channel);
  });
  uint4* const copied = shared + thread;
  StepRows x_rows(p, first_row), dy_rows = x_rows;
  const auto start_copies = [&](int stage, int step) {
    const int x_numbers = x_rows.number(p, p.first[0], p.in[0]);
    const int dy_numbers = step * kernel + lane < rows ? dy_rows.number(p, 0, p.out[0]) : -1;
    x_rows.advance(p, kernel), dy_rows.advance(p, kernel);
    uint4* to = copied + stage * stage_units;
#pragma unroll
    for (int r = 0; r < kernel; ++r) {
      x_copies.start(to + r * x_units, __shfl_sync(whole_warp, x_numbers, r));
      dy_copies.start(to + kernel * x_units + r * dy_units, __shfl_sync(whole_warp, dy_numbers, r));
    }
  };
  for (int i = 0; i < stages - 1; ++i) {
    if (i < steps) start_copies(i, i);
    commit_copies();
  }

  // Threads behind the last strip repeat the first; nobody adds their sums up.
  const int own_strip = thread / strip_threads, number = own_strip < p.strips ? own_strip : 0;
  const int side = number / p.image_strips, pair = thread % strip_threads;
  const int x_at = (side * p.period + (number - side * p.image_strips) * strip) * pixel_words + pair;
  const int dy_at = kernel * x_units * 4 + number * strip * pixel_words + pair;
  float sums[kernel][kernel][2] = {}, given[kernel][strip][2] = {};  // given: row r of a step in place r
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    if (step + stages - 1 < steps) start_copies(stage == 0 ? stages - 1 : stage - 1, step + stages - 1);
    commit_copies();
    const auto* pixels = reinterpret_cast<const uint32_t*>(shared + stage * stage_units);
#pragma unroll
    for (int r = 0; r < kernel; ++r) {
      load_pixels<T>(given[r], pixels + dy_at + r * dy_units * 4);
      float at[strip + kernel - 1][2];
      load_pixels<T>(at, pixels + x_at + r * x_units * 4);
#pragma unroll
      for (int down = 0; down < kernel; ++down)
#pragma unroll
        for (int i = 0; i < strip; ++i)
#pragma unroll
          for (int across = 0; across < kernel; ++across)
#pragma unroll
            for (int k = 0; k < 2; ++k)
              sums[down][across][k] += given[(r - down + kernel) % kernel][i][k] * at[i + across][k];
    }
    if (++stage == stages) stage = 0;
  }

  wait_for_copies<0>();
  __syncthreads();
  auto* all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int tap = 0; tap < taps; ++tap)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      all[(own_strip * taps + tap) * slots + 2 * pair + k] = sums[tap / kernel][tap % kernel][k];
  __syncthreads();
  for (int i = thread; i < taps * slots; i += threads) {
    const int tap = i / slots, of_block = i - tap * slots;
    if (first_channel + of_block >= channels) continue;
    float total = 0;
    for (int s = 0; s < p.strips; ++s) total += all[s * taps * slots + i];
    partial[(int64_t{part} * channels + first_channel + of_block) * taps + tap] = total;
  }
}

}  // namespace

cudaError_t depthwise_columns_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                 const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const DepthwiseColumns p(sizes);
  auto* partial = static_cast<float*>(workspace);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto kernel = p.piece_channels == unit_channels ? depthwise_columns_dw_kernel<T, unit_channels>
                        : p.piece_channels == 4           ? depthwise_columns_dw_kernel<T, 4>
                                                          : depthwise_columns_dw_kernel<T, 2>;
    if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
    kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.threads()), bytes, stream>>>(
        partial, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<int>(sizes.batch), p);
    if (const cudaError_t error = cudaGetLastError()) return error;
    return sum_parts(to, dw, partial, p.parts_of_sums(), sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
