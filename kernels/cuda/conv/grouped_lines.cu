#include "kernels/cuda/conv/grouped.h"

#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/conv/grouped_line_results.cuh"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// 3 x 3 convolutions of groups of up to 24 channels, and their input gradients without strides, on Hopper. One thread
// asks the copy engine for lines, each once a block, and warps that keep the weights of a group in registers multiply
// tiles of 16 out pixels. Reads lines once, but for two more at a block's end, and writes the result once.

namespace plimsoll::cuda {
namespace {

// Right operands of all products of a group, from the weights of a block in shared memory: words of 8 terms by 8 result
// channels. Between groups that are joined there are zeros. From memory, where eight rows of a warp's words lie apart,
// they took up to 5 us longer.
template <typename T, int units, bool gradient>
__device__ void load_weights(uint32_t (&to)[LineTerms<units>::pairs][units][2], const T* of_block,
                             const GroupedLines& p, int group, bool is_there) {
  using Terms = LineTerms<units>;
  constexpr int channels = units * unit_channels, taps = Terms::taps * Terms::taps;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, width = channels / p.joined;
#pragma unroll
  for (int pair = 0; pair < Terms::pairs; ++pair)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto term = Terms::term(pair, half);
      const int forward = term.row * Terms::taps + term.column, tap = gradient ? taps - 1 - forward : forward;
#pragma unroll
      for (int n = 0; n < units; ++n) {
        uint32_t word = 0;
        const int outer = (gradient ? term.unit : n) * unit_channels + lane / 4;
        const int inner = (gradient ? n : term.unit) * unit_channels + lane % 4 * 2 - outer / width * width;
        const bool has_half = half == 0 || Terms::kind(pair) != Terms::Pair::Alone;
        if (has_half && is_there && inner >= 0 && inner < width)
          word =
              *reinterpret_cast<const uint32_t*>(of_block + ((group * channels + outer) * taps + tap) * width + inner);
        to[pair][n][half] = gradient ? transposed_matrix(word) : word;
      }
    }
}

template <typename T, int units, bool gradient>
__device__ void multiply_lines(T* out, const CUtensorMap& out_map, const T* of_block, const T* bias, uint8_t* memory,
                               LineReader& lines, const GroupedLines& p, const LineBlock& mine) {
  using Terms = LineTerms<units>;
  constexpr LineWarps shape = output_warps(units);
  constexpr int groups = shape.warp_groups, tiles = shape.tiles,
                pixel_bytes = odd_units(shape.block_groups * units) * 16;
  const int in_tile = static_cast<int>(threadIdx.x) % 16;
  const bool second = threadIdx.x % warp_threads >= 16;
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
  const int first_group = warp / shape.pixel_warps * groups;  // of the block's
  uint32_t weights[groups][Terms::pairs][units][2];
#pragma unroll
  for (int g = 0; g < groups; ++g)
    load_weights<T, units, gradient>(weights[g], of_block, p, first_group + g,
                                     mine.first_group + first_group + g < p.groups);
  const LineResults<T, groups * units, 16 * tiles> results(out, reinterpret_cast<uint4*>(memory + p.ring_bytes()), p,
                                                           mine.first_group + first_group, warp);
  constexpr int block_units = shape.block_groups * units;
  constexpr bool stores_boxes = GroupedLines::stores_boxes(block_units);
  const LineBoxes<T, groups * units, 16 * tiles, block_units, shape.block_groups / groups> boxes(
      out_map, reinterpret_cast<uint4*>(memory + p.ring_bytes()), p, mine.channel, mine.first_group + first_group,
      warp % shape.pixel_warps, warp / shape.pixel_warps);
  const uint32_t from = shared_address(memory) + static_cast<uint32_t>(first_group * units * 16);
  for (int pixel = mine.first_pixel + warp % shape.pixel_warps * (16 * tiles); pixel < mine.end_pixel;
       pixel += shape.step_pixels()) {
    LineRows<units, pixel_bytes> rows[tiles];
    int last_line = 0;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      const LinePlace place(p, min(pixel + i * 16 + in_tile, mine.end_pixel - 1), mine.first_line);
      if (i == 0) lines.give_back_before(__shfl_sync(whole_warp, place.line, 0));
      if (i + 1 == tiles) last_line = __shfl_sync(whole_warp, place.line, 15) + p.reach();
      rows[i] = LineRows<units, pixel_bytes>(p, place, from, second);
    }
    lines.wait_for(last_line);
    float sums[tiles][groups * units][4] = {};
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int pair = 0; pair < Terms::pairs; ++pair) {
        LeftFragment left[tiles];
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
          const uint32_t row = rows[i].address(pair, g);
          if (Terms::kind(pair) != Terms::Pair::Alone)
            load_matrices_at(left[i].at, row);
          else
            load_two_matrices_at(left[i].at, row);
        }
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
          for (int n = 0; n < units; ++n) {
            const uint32_t(&right)[2] = weights[g][pair][n];
            float(&sum)[4] = sums[i][g * units + n];
            if (Terms::kind(pair) != Terms::Pair::Alone)
              multiply_add<T>(sum, left[i], RightFragments{{right[0], right[1]}}, 0);
            else
              multiply_add_half<T>(sum, left[i], RightFragments{{right[0]}}, 0);
          }
      }
    if constexpr (stores_boxes)
      boxes.write(sums, bias, pixel);
    else
      results.write(sums, bias, pixel, mine.end_pixel - pixel);
  }
  if constexpr (stores_boxes) boxes.wait_for_stores();
  lines.give_back_before(mine.last_line + p.stage_lines);
}

template <typename T, int units, bool gradient>
__global__ void __launch_bounds__(output_warps(units).threads(), 1)
    grouped_lines_kernel(T* __restrict__ out, const __grid_constant__ CUtensorMap out_map,
                         const __grid_constant__ CUtensorMap in, const T* __restrict__ w, const T* __restrict__ bias,
                         const __grid_constant__ GroupedLines p) {
  if constexpr (has_warpgroups) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ LineBarriers barriers;
    __shared__ Barrier weights_are_there;
    constexpr int warps = output_warps(units).warps();
    constexpr LinesPass pass = gradient ? LinesPass::InputGradient : LinesPass::Output;
    const LineBlock mine(p, static_cast<int>(blockIdx.x));
    auto* of_block = reinterpret_cast<T*>(memory + p.ring_bytes() + p.staged_bytes(pass));
    if (threadIdx.x == 0) {
      barriers.set_up(p.stages, warps);
      set_up_barrier(&weights_are_there, 1);
      show_barriers_to_copies();
    }
    __syncthreads();
    if (threadIdx.x < warps * warp_threads) {
      LineReader lines(barriers, p);
      wait_at(&weights_are_there, 0);
      multiply_lines<T, units, gradient>(out, out_map, of_block, bias, memory, lines, p, mine);
    } else if (threadIdx.x == warps * warp_threads) {
      const int row_bytes = p.weight_row_bytes(), first = mine.first_group * units * unit_channels,
                bytes = min(p.warps.block_groups, p.groups - mine.first_group) * units * unit_channels * row_bytes;
      arrive_with_copies(&weights_are_there, bytes);
      copy_bytes(of_block, reinterpret_cast<const uint8_t*>(w) + int64_t{first} * row_bytes, bytes, &weights_are_there);
      LineLoader(memory, barriers, in, p, mine.channel, mine.first_line).load_up_to(mine.last_line);
    }
  } else {
    __trap();
  }
}

template <bool gradient>
cudaError_t launch_lines(Scalar type, void* out, const void* in, const void* w, const void* bias,
                         const ConvolutionSizes& c, cudaStream_t stream) {
  constexpr LinesPass pass = gradient ? LinesPass::InputGradient : LinesPass::Output;
  const GroupedLines p(c, pass);
  CUtensorMap map, out_map;
  const int64_t channels = int64_t{p.groups} * p.units * unit_channels;
  if (const cudaError_t error = map_line_boxes(map, in, {c.batch, p.in[0], p.in[1], channels},
                                               p.pixel_units() * unit_channels, p.line_pixels))
    return error;
  if (const cudaError_t error =
          map_line_boxes(out_map, out, {1, 1, p.pixels, channels}, p.block_channels(), 16 * p.warps.tiles))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes(pass));
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_line_units<GroupedLines::max_output_units>(p.units, [&](auto units) {
      const auto kernel = grouped_lines_kernel<T, decltype(units)::value, gradient>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.warps.threads()), bytes, stream>>>(
          static_cast<T*>(out), out_map, map, static_cast<const T*>(w), static_cast<const T*>(bias), p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t grouped_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                          const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch_lines<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t grouped_lines_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                             cudaStream_t stream) {
  return launch_lines<true>(type, dx, dy, w, nullptr, sizes, stream);
}

}  // namespace plimsoll::cuda
