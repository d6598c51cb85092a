#include "kernels/cuda/conv/grouped.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Weight gradients of 3 x 3 convolutions of groups of up to 32 channels, on Hopper. Terms of products are 16 out
// pixels; their rows are units of channels of x under two taps, their columns channels of dy. Lines of x come once a
// block and serve all taps from shared memory, dy comes in steps of some pixels. Writes the sums of every block, which
// a second launch adds up in a fixed order.

namespace plimsoll::cuda {
namespace {

constexpr int all_taps = GroupedLines::kernel * GroupedLines::kernel;

// A product has the rows of a pair of units; some of these tiles are a warp's.
template <int units>
struct WeightTiles {
  using Terms = LineTerms<units>;
  static constexpr LineWarps shape = weight_gradient_warps(units);
  static constexpr int tiles = Terms::pairs, warp_tiles = (tiles + shape.tap_warps - 1) / shape.tap_warps;
  static constexpr int pixel_bytes = odd_units(shape.block_groups * units) * 16;
  using Rows = LineRows<units, pixel_bytes>;
};

struct DyBarriers {
  static constexpr int max_stages = 8;
  Barrier full[max_stages], empty[max_stages];
};

struct WarpWork {
  int group, taps, pixels;  // of the block's groups, of the parts of the taps, and of a step's pixels

  template <LineWarps shape>
  __device__ static WarpWork of(int warp) {
    return {warp % shape.block_groups, warp / shape.block_groups % shape.tap_warps,
            warp / (shape.block_groups * shape.tap_warps)};
  }
};

__device__ void load_steps(uint8_t* memory, LineBarriers& barriers, DyBarriers& of_dy, const CUtensorMap& x,
                           const CUtensorMap& dy, const GroupedLines& p, const LineBlock& mine) {
  const int step_pixels = p.warps.step_pixels();
  LineLoader lines(memory, barriers, x, p, mine.channel, mine.first_line);
  RingPlace at;
  for (int pixel = mine.first_pixel; pixel < mine.end_pixel; pixel += step_pixels, at.advance(p.dy_stages)) {
    wait_at(&of_dy.empty[at.stage], at.parity ^ 1);
    arrive_with_copies(&of_dy.full[at.stage], step_pixels * p.pixel_bytes);
    copy_box(memory + p.ring_bytes() + at.stage * p.dy_bytes, dy, mine.channel, pixel, 0, 0, &of_dy.full[at.stage]);
    const int last = min(pixel + step_pixels, mine.end_pixel) - 1;
    lines.load_up_to(LinePlace(p, last, mine.first_line).line + p.reach());
  }
}

// Right operands: 16 pixels of dy by all channels of a group, of which `row` is this thread's pixel.
template <int units>
__device__ void load_dy(uint32_t (&to)[units][2], uint32_t row) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int n = 0; n < units; n += 2) {
    // Of an odd count, the last one twice.
    const int next = n + 1 < units ? n + 1 : n;
    uint32_t words[4];
    load_matrices_transposed_at(words, row + (lane < 16 ? n : next) * 16);
    to[n][0] = words[0], to[n][1] = words[1];
    if (next > n) to[next][0] = words[2], to[next][1] = words[3];
  }
}

// All of a warp's products of 16 pixels, with the part-th part of the tiles.
template <typename T, int units, int part>
__device__ void multiply_pixels(float (&sums)[WeightTiles<units>::warp_tiles][units][4],
                                const typename WeightTiles<units>::Rows& rows, const uint32_t (&right)[units][2]) {
  using Tiles = WeightTiles<units>;
#pragma unroll
  for (int i = 0; i < Tiles::warp_tiles; ++i) {
    const int tile = part * Tiles::warp_tiles + i;
    if (tile >= Tiles::tiles) continue;
    LeftFragment left;
    load_matrices_transposed_at(left.at, rows.address(tile, 0));
#pragma unroll
    for (int n = 0; n < units; ++n) multiply_add<T>(sums[i][n], left, RightFragments{{right[n][0], right[n][1]}}, 0);
  }
}

// The same for the part that the warp has.
template <typename T, int units, int part = 0>
__device__ void multiply_part(float (&sums)[WeightTiles<units>::warp_tiles][units][4],
                              const typename WeightTiles<units>::Rows& rows, const uint32_t (&right)[units][2],
                              int taps) {
  if (taps == part) return multiply_pixels<T, units, part>(sums, rows, right);
  if constexpr (part + 1 < WeightTiles<units>::shape.tap_warps)
    multiply_part<T, units, part + 1>(sums, rows, right, taps);
}

template <typename T, int units>
__device__ void multiply_steps(float (&sums)[WeightTiles<units>::warp_tiles][units][4], uint8_t* memory,
                               LineReader& lines, DyBarriers& of_dy, const GroupedLines& p, const LineBlock& mine,
                               const WarpWork& work) {
  using Tiles = WeightTiles<units>;
  constexpr int tiles = Tiles::shape.tiles;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, term = lane % 8 + lane / 16 * 8;
  const bool second = lane / 8 % 2 != 0;
  const uint32_t of_group = shared_address(memory) + static_cast<uint32_t>(work.group * units * 16);
  RingPlace at;
  for (int step = mine.first_pixel; step < mine.end_pixel;
       step += Tiles::shape.step_pixels(), at.advance(p.dy_stages)) {
    // Pixels beyond the last are that one, times zeros of dy.
    const auto place_of = [&](int tile, int of_tile) {
      return LinePlace(p, min(step + (work.pixels * tiles + tile) * 16 + of_tile, mine.end_pixel - 1), mine.first_line);
    };
    lines.give_back_before(place_of(0, 0).line);
    lines.wait_for(place_of(tiles - 1, 15).line + p.reach());
    wait_at(&of_dy.full[at.stage], at.parity);
    const auto dy_at = of_group + static_cast<uint32_t>(p.ring_bytes() + at.stage * p.dy_bytes);
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      uint32_t right[units][2];
      load_dy<units>(right,
                     dy_at + static_cast<uint32_t>(((work.pixels * tiles + i) * 16 + lane % 16) * Tiles::pixel_bytes));
      const typename Tiles::Rows rows(p, place_of(i, term), of_group, second);
      multiply_part<T, units>(sums, rows, right, work.taps);
    }
    arrive_as_warp_at(&of_dy.empty[at.stage]);
  }
}

// Adds up the sums of warps that have the same weights, in their order, into those of the first; all threads of the
// block call it.
template <int units>
__device__ void join_sums(float (&sums)[WeightTiles<units>::warp_tiles][units][4], float* memory, int warp,
                          const WarpWork& work) {
  using Tiles = WeightTiles<units>;
  constexpr int count = Tiles::warp_tiles * units * 4, alike = Tiles::shape.block_groups * Tiles::shape.tap_warps;
  float* shared = memory + warp % alike * (count * warp_threads) + threadIdx.x % warp_threads;
  for (int i = 1; i < Tiles::shape.pixel_warps; ++i) {
    __syncthreads();
    if (work.pixels == i)
#pragma unroll
      for (int k = 0; k < count; ++k) shared[k * warp_threads] = sums[k / (4 * units)][k / 4 % units][k % 4];
    __syncthreads();
    if (work.pixels == 0)
#pragma unroll
      for (int k = 0; k < count; ++k) sums[k / (4 * units)][k / 4 % units][k % 4] += shared[k * warp_threads];
  }
}

// Of groups that are joined, what each has in common with itself.
template <int units>
__device__ void write_part(float* partial, const float (&sums)[WeightTiles<units>::warp_tiles][units][4], int group,
                           int taps, int joined) {
  using Tiles = WeightTiles<units>;
  constexpr int channels = units * unit_channels;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, width = channels / joined;
#pragma unroll
  for (int i = 0; i < Tiles::warp_tiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile = taps * Tiles::warp_tiles + i;
      if (tile >= Tiles::tiles || (half == 1 && Tiles::Terms::kind(tile) == Tiles::Terms::Pair::Alone)) continue;
      const auto term = Tiles::Terms::term(tile, half);
#pragma unroll
      for (int n = 0; n < units; ++n)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int y_channel = n * unit_channels + lane % 4 * 2 + k;
          const int x_channel = term.unit * unit_channels + lane / 4 - y_channel / width * width;
          if (x_channel >= 0 && x_channel < width)
            partial[(int64_t{group * channels + y_channel} * all_taps + term.row * Tiles::Terms::taps + term.column) *
                        width +
                    x_channel] = sums[i][n][2 * half + k];
        }
    }
}

template <typename T, int units>
__global__ void __launch_bounds__(weight_gradient_warps(units).threads(), 1)
    grouped_lines_dw_kernel(float* __restrict__ partial, const __grid_constant__ CUtensorMap x,
                            const __grid_constant__ CUtensorMap dy, const __grid_constant__ GroupedLines p,
                            int64_t weights) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ LineBarriers barriers;
    __shared__ DyBarriers of_dy;
    constexpr LineWarps shape = weight_gradient_warps(units);
    const LineBlock mine(p, static_cast<int>(blockIdx.x));
    const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
    const WarpWork work = WarpWork::of<shape>(warp);
    if (threadIdx.x == 0) {
      barriers.set_up(p.stages, shape.warps());
      for (int i = 0; i < p.dy_stages; ++i) {
        set_up_barrier(&of_dy.full[i], 1);
        set_up_barrier(&of_dy.empty[i], shape.warps());
      }
      show_barriers_to_copies();
    }
    __syncthreads();
    float sums[WeightTiles<units>::warp_tiles][units][4] = {};
    if (warp < shape.warps()) {
      LineReader lines(barriers, p);
      multiply_steps<T, units>(sums, memory, lines, of_dy, p, mine, work);
    } else {
      if (threadIdx.x % warp_threads == 0) load_steps(memory, barriers, of_dy, x, dy, p, mine);
      __syncwarp();
    }
    join_sums<units>(sums, reinterpret_cast<float*>(memory), warp, work);
    const int group = mine.first_group + work.group;
    if (work.pixels == 0 && group < p.groups)
      write_part<units>(partial + mine.split * weights, sums, group, work.taps, p.joined);
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t grouped_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const ConvolutionSizes& c,
                             void* workspace, cudaStream_t stream) {
  constexpr LinesPass pass = LinesPass::WeightGradient;
  const GroupedLines p(c, pass);
  auto* partial = static_cast<float*>(workspace);
  const int64_t channels = int64_t{p.groups} * p.units * unit_channels;
  const int box_channels = p.pixel_units() * unit_channels;
  CUtensorMap x_map, dy_map;
  if (const cudaError_t error =
          map_line_boxes(x_map, x, {c.batch, p.in[0], p.in[1], channels}, box_channels, p.line_pixels))
    return error;
  if (const cudaError_t error =
          map_line_boxes(dy_map, dy, {1, 1, p.pixels, channels}, box_channels, p.warps.step_pixels()))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes(pass));
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_line_units<GroupedLines::max_units>(p.units, [&](auto units) {
      const auto kernel = grouped_lines_dw_kernel<T, decltype(units)::value>;
      if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.warps.threads()), bytes, stream>>>(
          partial, x_map, dy_map, p, c.weights());
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, c.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
