#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_bands.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Weight gradients of 3 x 3 convolutions of groups of 24 channels without strides, on Hopper. Terms of products are the
// 16 pixels of a tile of dy; their rows are two units of channels of x under one tap each, their columns channels of
// dy. Reads both images once, but for lines of x around a block's bands. A block adds all its bands up in registers,
// writes a part, and a second launch adds the parts up in a fixed order.

namespace plimsoll::cuda {
namespace {

using Sizes = GroupedBands;
constexpr int units = Sizes::group_units, tiles = 2, quads = 4, tap_warps = 2, pixel_warps = 2, all_rows = 7;
static_assert(Sizes::block_groups * tap_warps * pixel_warps == Sizes::warps);
static_assert(all_rows * units * 4 == Sizes::sums_of_warp);

// The rows of a warp's products: those of a pair of units for the three taps of a column, one below the other, of a
// second pair, and a rest of the last unit under the last column.
// - The first warp has the first two units under the first and under the second column, and the rest has the upper two
//   taps.
// - The second warp has the first two units under the last column, the last unit under the first two columns, and the
//   rest has the lowest tap.
struct RowTerm {
  int column, unit, line;
  bool is_there;

  __device__ static constexpr RowTerm of(int warp, int rows, int half) {
    constexpr int last = units - 1, last_column = Sizes::kernel - 1;
    const int pair = rows / Sizes::kernel, line = rows % Sizes::kernel;
    if (pair == 2) return {last_column, last, warp == 0 ? half : Sizes::kernel - 1, warp == 0 || half == 0};
    if (warp == 1 && pair == 1) return {half, last, line, true};
    return {warp == 1 ? last_column : pair, half, line, true};
  }
};

using WarpSums = float[all_rows][units][4];

// A warp's group of the block's, its share of the taps and its share of the strips.
struct BandWork {
  int group, taps, pixels;

  __device__ explicit BandWork(int warp)
      : group(warp % Sizes::block_groups),
        taps(warp / Sizes::block_groups % tap_warps),
        pixels(warp / (Sizes::block_groups * tap_warps)) {}
};

// The addresses of this thread's rows in the lines of a band: of left operands the matrices are two units of channels,
// in lines that lie two apart, of right ones two lines of two units. rest: of the upper two taps or of the lowest one.
template <int warp>
struct BandRows {
  uint32_t x[quads], rest[tiles], dy[tiles];

  __device__ BandRows(uint32_t shared, uint32_t of_thread, uint32_t zeros, const BandWindow& window, const Sizes& p,
                      int first_line) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, second = lane / 8 % 2, fourth = lane / 16;
    const auto x_line = [&](int i) {
      const int line = first_line - 1 + i;
      const bool is_there = line >= 0 && line < p.lines;
      return is_there ? shared + of_thread + static_cast<uint32_t>(window.slot(i) * p.line_bytes) : zeros;
    };
#pragma unroll
    for (int j = 0; j < quads; ++j) x[j] = x_line(j + tiles * fourth);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      rest[t] = warp == 0 ? x_line(t + second + tiles * fourth) : x_line(t + tiles + tiles * second);
      const int line = t + tiles * second, at = p.dy_ring_at() + window.slot(line + 1) * p.dy_line_bytes;
      dy[t] = first_line + line < p.lines ? shared + of_thread + static_cast<uint32_t>(at) : zeros;
    }
  }
};

using RightTiles = uint32_t[tiles][units][2];

__device__ inline void load_dy(RightTiles& right, const uint32_t (&dy)[tiles], int strip, uint32_t zeros) {
  const uint32_t fourth = threadIdx.x % warp_threads / 16;
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    const uint32_t at = strip_at(dy[t], strip, zeros);
    uint32_t words[4];
    load_matrices_transposed_at(words, at + fourth * 16);
    right[t][0][0] = words[0], right[t][0][1] = words[1], right[t][1][0] = words[2], right[t][1][1] = words[3];
    load_two_matrices_transposed_at(right[t][2][0], right[t][2][1], at + (units - 1) * 16);
  }
}

// Left operands number i of a strip: of the first pair of units, of the second one, or the rest.
template <int warp>
__device__ __forceinline__ void load_x(LeftFragment (&to)[quads], const BandRows<warp>& rows, int i, int strip,
                                       uint32_t zeros) {
  constexpr int pixel = Sizes::pixel_bytes, last_unit = (units - 1) * 16, last_column = (Sizes::kernel - 1) * pixel;
  const auto second = static_cast<uint32_t>(threadIdx.x / 8 % 2);
  if (i < 2) {
    const bool is_last_unit = warp == 1 && i == 1;
    const int column = is_last_unit ? last_unit : warp == 1 ? last_column : i * pixel;
#pragma unroll
    for (int j = 0; j < quads; ++j)
      load_matrices_transposed_at(to[j].at,
                                  strip_at(rows.x[j], strip, zeros) + column + second * (is_last_unit ? pixel : 16));
    return;
  }
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    const uint32_t at = strip_at(rows.rest[t], strip, zeros) + last_column + last_unit;
    if (warp == 0) {
      load_matrices_transposed_at(to[t].at, at);
    } else {
      load_two_matrices_transposed_at(to[t].at[0], to[t].at[2], at);
      to[t].at[1] = to[t].at[3] = 0;
    }
  }
}

template <typename T, int warp>
__device__ __forceinline__ void multiply_strip(WarpSums& sums, const BandRows<warp>& rows, int strip, uint32_t zeros) {
  RightTiles right;
  load_dy(right, rows.dy, strip, zeros);
  LeftFragment left[2][quads];
  load_x(left[0], rows, 0, strip, zeros);
#pragma unroll
  for (int i = 0; i <= 2; ++i) {
    if (i < 2) load_x(left[(i + 1) % 2], rows, i + 1, strip, zeros);
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int k = 0; k < (i < 2 ? Sizes::kernel : 1); ++k)
#pragma unroll
        for (int n = 0; n < units; ++n)
          multiply_add<T>(sums[Sizes::kernel * i + k][n], left[i % 2][t + k],
                          RightFragments{{right[t][n][0], right[t][n][1]}}, 0);
  }
}

template <typename T, int warp>
__device__ void multiply_bands(WarpSums& sums, uint32_t shared, BandBarriers& barriers, const Sizes& p,
                               const BandBlock& mine, const BandWork& work) {
  const uint32_t zeros = shared + p.zeros_at(),
                 of_thread = threadIdx.x % 8 * Sizes::pixel_bytes + work.group * Sizes::group_channels * 2;
  BandReader reader(barriers, p);
  BandWindow window(p);
  int strip = work.pixels;
  for (int band = 0; band < mine.count; ++band, strip -= p.strips, window.advance()) {
    reader.wait_for(last_line_of(band));
    const BandRows<warp> rows(shared, of_thread, zeros, window, p,
                              BandLine(p, mine, band * Sizes::band_lines + 1).line);
    for (; strip < p.strips; strip += pixel_warps) multiply_strip<T>(sums, rows, strip, zeros);
    reader.give_back_before(first_line_behind(band));
  }
}

// The computing warps wait for each other.
__device__ inline void wait_for_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(Sizes::computing_threads) : "memory");
}

// Of the rows of sums that two warps have, of different strips, either gets the other's: the first one of rows before
// first_of_second.
constexpr int first_of_second = (all_rows + 1) / 2;
__device__ void join_sums(WarpSums& sums, float* memory, int warp, const BandWork& work) {
  float* shared =
      memory + warp % (Sizes::warps / pixel_warps) * (Sizes::sums_of_warp * warp_threads) + threadIdx.x % warp_threads;
  const auto each = [&](int first_row, int end_row, auto visit) {
#pragma unroll
    for (int row = first_row; row < end_row; ++row)
#pragma unroll
      for (int i = 0; i < units * 4; ++i) visit(shared[(row * units * 4 + i) * warp_threads], sums[row][i / 4][i % 4]);
  };
  const auto leave = [](float& place, float own) { place = own; };
  const auto add = [](const float& place, float& own) { own += place; };
  const bool is_second = work.pixels > 0;
  // All warps have read their lines, so the sums may take their place.
  wait_for_computing();
  if (is_second)
    each(0, first_of_second, leave);
  else
    each(first_of_second, all_rows, leave);
  wait_for_computing();
  if (is_second)
    each(first_of_second, all_rows, add);
  else
    each(0, first_of_second, add);
}

template <int warp, int first_row, int end_row>
__device__ void write_part(float* group, const WarpSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int i = first_row; i < end_row; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr int width = Sizes::group_channels;
      const RowTerm term = RowTerm::of(warp, i, half);
      if (!term.is_there) continue;
      const int tap = term.line * Sizes::kernel + term.column, x_channel = term.unit * unit_channels + lane / 4;
#pragma unroll
      for (int n = 0; n < units; ++n)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          group[((n * unit_channels + lane % 4 * 2 + k) * Sizes::taps + tap) * width + x_channel] =
              sums[i][n][2 * half + k];
    }
}

template <typename T>
__global__ void __launch_bounds__(Sizes::threads, 1)
    grouped_bands_dw_kernel(float* __restrict__ partial, const T* __restrict__ x,
                            const __grid_constant__ CUtensorMap x_boxes, const T* __restrict__ dy,
                            const __grid_constant__ CUtensorMap dy_boxes, const __grid_constant__ Sizes p,
                            int64_t weights) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ BandBarriers barriers;
    const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(whole_warp, thread / warp_threads, 0);
    const BandBlock mine(p, static_cast<int>(blockIdx.x));
    if (thread == 0) barriers.set_up(p.stages);
    write_band_zeros(memory, p);
    __syncthreads();
    if (warp >= Sizes::warps) {
      give_registers<Sizes::copying_registers>();
      if (thread == Sizes::computing_threads) {
        const BandImage of_x{x, x_boxes}, of_dy{dy, dy_boxes};
        BandLoader loader(memory, barriers, of_x, of_dy, p, mine);
        for (int stage = 0; stage < mine.stages(); ++stage) loader.load_stage(stage);
      }
      return;
    }
    take_registers<Sizes::computing_registers>();
    const BandWork work(warp);
    WarpSums sums = {};
    const uint32_t shared = shared_address(memory);
    if (work.taps == 0)
      multiply_bands<T, 0>(sums, shared, barriers, p, mine, work);
    else
      multiply_bands<T, 1>(sums, shared, barriers, p, mine, work);
    join_sums(sums, reinterpret_cast<float*>(memory), warp, work);
    const int group = mine.first_group + work.group;
    if (group >= p.groups) return;
    constexpr int group_weights = Sizes::group_channels * Sizes::taps * Sizes::group_channels;
    float* part = partial + mine.split * weights + int64_t{group} * group_weights;
    const auto write = [&]<int warp_taps>(std::integral_constant<int, warp_taps>) {
      if (work.pixels == 0)
        write_part<warp_taps, 0, first_of_second>(part, sums);
      else
        write_part<warp_taps, first_of_second, all_rows>(part, sums);
    };
    if (work.taps == 0)
      write(std::integral_constant<int, 0>());
    else
      write(std::integral_constant<int, 1>());
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t grouped_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const ConvolutionSizes& c,
                             void* workspace, cudaStream_t stream) {
  const Sizes p(c, true);
  auto* partial = static_cast<float*>(workspace);
  const int64_t sizes[] = {c.batch, p.lines, p.pixels, int64_t{p.groups} * Sizes::group_channels};
  CUtensorMap x_boxes, dy_boxes;
  if (const cudaError_t error = map_line_boxes(x_boxes, x, sizes, Sizes::block_channels, p.copied_pixels()))
    return error;
  if (const cudaError_t error = map_line_boxes(dy_boxes, dy, sizes, Sizes::block_channels, p.copied_dy_pixels()))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto kernel = grouped_bands_dw_kernel<T>;
    if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
    kernel<<<static_cast<unsigned>(p.blocks()), Sizes::threads, bytes, stream>>>(
        partial, static_cast<const T*>(x), x_boxes, static_cast<const T*>(dy), dy_boxes, p, c.weights());
    if (const cudaError_t error = cudaGetLastError()) return error;
    return sum_parts(to, dw, partial, p.splits, c.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
