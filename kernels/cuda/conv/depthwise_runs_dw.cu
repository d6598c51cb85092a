#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/conv/depthwise_runs.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv_dw without strides on the matrix units, while what comes next is copied. A product serves one channel
// and one row of taps; its terms are up to 8 spots of two rows of pixels, its left operand
// has 16 columns of x of each spot and its right one 8 of dy, so that a tap across is a diagonal of the sums. Sums stay
// in registers. Reads x and dy once, but for the rims of columns' tiles and the rows between two parts of the run.

namespace plimsoll::cuda {
namespace {

constexpr int threads = DepthwiseWeightRuns::threads, warps = threads / warp_threads;
constexpr int step_rows = DepthwiseRuns::step_rows;
constexpr int slots = DepthwiseRuns::slots, warp_slots = slots / warps;
constexpr int sum_rows = 16, sum_columns = 8;

// What a warp reads of the planes: matrices of x's rows r, r, r + 1 and r + 1, columns 0 to 7 and 8 to 15, and of four
// rows of dy. Spots that are not there have zeros of dy.
struct OperandsOfLane {
  int x, x_row, dy, dy_step;  // in units of 16 bytes
  int ring, row_units;

  __device__ OperandsOfLane(const DepthwiseWeightRuns& p, int part_rows, int ring_rows)
      : ring(ring_rows), row_units(p.row_units) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const SpotPlace place(p, lane % 8, part_rows);
    x = place.unit + lane / 8 % 2 + lane / 16 * row_units;
    x_row = place.row;
    dy = place.valid ? (place.row + lane / 8 % part_rows) * p.spots() + place.spot : step_rows * p.spots();
    dy_step = place.valid ? 4 * p.spots() : 0;
  }
  __device__ int x_at(int ring_row, int pair) const {
    const int row = ring_row + x_row + 2 * pair;
    return x + (row >= ring ? row - ring : row) * row_units;
  }
};

// Adds the products of a step of one plane to sums by row of taps.
template <typename T, int kernel, int pairs>
__device__ void add_step(float (&sums)[kernel][4], const uint4* x, const uint4* dy, const OperandsOfLane& at,
                         int ring_row) {
  constexpr int loads = pairs + (kernel - 1) / 2;
  RightFragments given[(pairs + 1) / 2];  // of two pairs of rows
#pragma unroll
  for (int i = 0; i < (pairs + 1) / 2; ++i) load_matrices_transposed(given[i].at, dy + at.dy + i * at.dy_step);
  const auto multiply = [&](const LeftFragment& pixels, int down) {
#pragma unroll
    for (int i = 0; i < pairs; ++i)
      if (const int tap = down - 2 * i; tap >= 0 && tap < kernel)
        multiply_add<T>(sums[tap % kernel], pixels, given[i / 2], i % 2);
  };
  LeftFragment above, below;
  load_matrices_transposed(above.at, x + at.x_at(ring_row, 0));
#pragma unroll
  for (int pair = 0; pair < loads; ++pair) {
    if (pair + 1 < loads) load_matrices_transposed(below.at, x + at.x_at(ring_row, pair + 1));
    multiply(above, 2 * pair);
    if (pair + 1 == loads) break;
    multiply(LeftFragment{{above.at[2], above.at[3], below.at[0], below.at[1]}}, 2 * pair + 1);
    above = below;
  }
}

// Fills rows of planes from `first_row` of a ring on, and starts the copies of the next rows.
template <typename T>
__device__ void fill(const PlaneRows<T>& rows, int first_row, int ring, bool has_next, int next_numbers) {
#pragma unroll 1
  for (int row = rows.at.first; row < step_rows; row += rows.at.step) {
    const int to = first_row + row;
    rows.put(rows.plane + (to >= ring ? to - ring : to) * rows.row_units, *rows.vector(row));
    if (has_next) rows.copy(row, next_numbers);
  }
}

template <typename T, int kernel, int pairs>
__global__ void __launch_bounds__(threads, 1)
    depthwise_runs_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy, int batch,
                             const __grid_constant__ DepthwiseWeightRuns p) {
  extern __shared__ __align__(128) uint4 shared[];
  constexpr int ring = step_rows + kernel - 1;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * DepthwiseRuns::block_units;
  const unsigned part = digits.rest;
  const int column = digits.take(p.column_tiles) * p.width, split = static_cast<int>(digits.rest);
  const int units = min(DepthwiseRuns::block_units, p.units - first_unit), first_channel = first_unit * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  uint4 *dy_stage = shared + p.stage_units(), *planes = dy_stage + p.dy_stage_units();
  uint4* dy_planes = planes + p.planes_units();
  const int first_row = split * p.block_steps * step_rows;
  const int end_row = static_cast<int>(min(p.run_rows, int64_t{first_row} + p.block_steps * step_rows));

  const int all_channels = p.units * unit_channels;
  const WarpUnit x_unit(p.row_units, warps), dy_unit(p.spots(), warps);
  const PlaneRows<T> x_rows(x_unit,
                            pixels_of_unit(x, p.in, p, x_unit.unit, p.image_units, column + p.first[1], p.period, units,
                                           first_channel, batch),
                            p.in[1] * all_channels, p.row_units, shared, planes, p.plane_units);
  const PlaneRows<T> dy_rows(
      dy_unit, pixels_of_unit(dy, p.out, p, dy_unit.unit, p.image_spots, column, p.period, units, first_channel, batch),
      p.out[1] * all_channels, p.spots(), dy_stage, dy_planes, p.dy_plane_units);
  StepRows of_x(p, first_row), of_dy = of_x;
  uint4 above[kernel - 1];
  x_rows.load_above(above, of_x.number(p, p.first[0], p.in[0]));
  of_x.advance(p, kernel - 1);
  x_rows.copy_all(of_x.number(p, p.first[0], p.in[0]));
  dy_rows.copy_all(of_dy.number(p, 0, p.out[0]));
  commit_copies();
  clear_ends(planes, p.plane_units, ring * p.row_units);
  clear_ends(dy_planes, p.dy_plane_units, step_rows * p.spots());
  x_rows.put_above(above);

  const OperandsOfLane at(p, 2 * pairs, ring);
  float sums[warp_slots][kernel][4] = {};
  int ring_row = 0;
  const auto below = [&](int rows) { return ring_row + rows >= ring ? ring_row + rows - ring : ring_row + rows; };
  for (int row = first_row; row < end_row; row += step_rows) {
    const bool has_next = row + step_rows < end_row;
    wait_for_copies<0>();
    of_x.advance(p, step_rows), of_dy.advance(p, step_rows);
    fill(x_rows, below(kernel - 1), ring, has_next, of_x.number(p, p.first[0], p.in[0]));
    fill(dy_rows, 0, step_rows, has_next, of_dy.number(p, 0, p.out[0]));
    commit_copies();
    __syncthreads();
#pragma unroll
    for (int n = 0; n < warp_slots; ++n) {
      const int slot = warp + n * warps;
      add_step<T, kernel, pairs>(sums[n], planes + slot * p.plane_units, dy_planes + slot * p.dy_plane_units, at,
                                 ring_row);
    }
    ring_row = below(step_rows);
    __syncthreads();
  }

  auto* all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int n = 0; n < warp_slots; ++n)
#pragma unroll
    for (int down = 0; down < kernel; ++down)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sum_row = lane / 4 + i / 2 * 8, sum_column = lane % 4 * 2 + i % 2;
        all[(((warp + n * warps) * kernel + down) * sum_rows + sum_row) * sum_columns + sum_column] = sums[n][down][i];
      }
  __syncthreads();
  constexpr int taps = kernel * kernel;
  for (int i = thread; i < slots * taps; i += threads) {
    const int slot = i / taps, tap = i - slot * taps, down = tap / kernel, across = tap - down * kernel;
    const int of_slot = channel_of_slot(slot, DepthwiseRuns::block_units);
    if (of_slot >= units * unit_channels) continue;
    const float* of_row = all + (slot * kernel + down) * (sum_rows * sum_columns);
    float total = 0;
#pragma unroll
    for (int n = 0; n < sum_columns; ++n) total += of_row[(n + across) * sum_columns + n];
    partial[(int64_t{part} * all_channels + first_channel + of_slot) * taps + tap] = total;
  }
}

}  // namespace

cudaError_t depthwise_runs_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                              const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const DepthwiseWeightRuns p(sizes);
  auto* partial = static_cast<float*>(workspace);
  const auto bytes = static_cast<size_t>(p.shared_bytes(sizes));
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_kernel_size(sizes.kernel[0], [&](auto size) {
      return with_row_pairs(p, [&](auto pairs) {
        const auto kernel = depthwise_runs_dw_kernel<T, decltype(size)::value, decltype(pairs)::value>;
        if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
        kernel<<<static_cast<unsigned>(p.blocks()), threads, bytes, stream>>>(
            partial, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<int>(sizes.batch), p);
        return cudaGetLastError();
      });
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.parts_of_sums(), sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
