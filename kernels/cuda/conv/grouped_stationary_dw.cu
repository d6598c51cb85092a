#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/warpgroup_columns.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/grouped_stationary_sums.h"
#include "kernels/cuda/conv/stationary_images.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

// Weight gradients of 3 x 3 convolutions of groups by products of warpgroups, on Hopper. Reads both images once, but
// for lines of x at a tile's ends. Left operands are 16 pixels of dy, which warps read from shared memory once for all
// taps, and right ones are as many pixels of x under each tap. The sums of all of a block's tiles stay in registers,
// are written as a part at last, and a second launch adds the parts.

namespace plimsoll::cuda {
namespace {

using Sizes = GroupedStationarySums;
constexpr int middle_tap = Sizes::taps / 2;

struct SumBarriers {
  Barrier full[Sizes::max_stages], empty[Sizes::max_stages];

  __device__ void set_up(int stages) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], 1);
      set_up_barrier(&empty[i], Sizes::warpgroups);
    }
    show_barriers_to_copies();
  }
};

// The taps of the last warpgroup, where each has four of the nine and a half of the middle one. With a stride of 2, the
// second tap of a pair lies in a later plane, or further on in the same one.
constexpr int last_tap(int stride, int i) {
  constexpr int of_planes[] = {8, 5, 6, 7};
  return stride > 1 ? of_planes[i] : middle_tap + 1 + i;
}

// The sums of a warpgroup. With two lines it has a part of the channels and every line and column that their taps read.
// Otherwise it has four of the nine taps, and half of the columns of the middle one.
template <int shifts, int columns>
struct TapSums {
  static constexpr int count = shifts == 1 ? middle_tap : (shifts + Sizes::kernel - 1) * Sizes::kernel,
                       half_tiles = shifts == 1 ? columns / 16 : 0;
  float at[count][columns / 8][4] = {}, half[half_tiles > 0 ? half_tiles : 1][4] = {};
};

// Writes the zeros behind all planes of all stages; each warp takes a plane at a time.
__device__ inline void write_zeros(uint8_t* ring, const Sizes& p) {
  constexpr int warps = Sizes::computing_threads / warp_threads;
  const int planes = p.planes(), of_stage = planes + p.shifts, x_bytes = p.x_bytes(), dy_bytes = p.dy_bytes();
  for (int i = static_cast<int>(threadIdx.x) / warp_threads; i < p.stages * of_stage; i += warps) {
    const int in_stage = i % of_stage;
    uint8_t* stage = ring + i / of_stage * p.stage_bytes();
    if (in_stage < planes)
      write_zeros_behind(stage + in_stage * x_bytes, p.plane_pixels(), p.x_zeros());
    else
      write_zeros_behind(stage + planes * x_bytes + (in_stage - planes) * dy_bytes, p.dy_pixels(), p.dy_zeros());
  }
}

__device__ inline void load_tiles(uint8_t* ring, SumBarriers& barriers, const CUtensorMap& x, const CUtensorMap& dy,
                                  const Sizes& p, int channel, int split) {
  const int bytes = (p.planes() * p.plane_pixels() + p.shifts * p.dy_pixels()) * p.channels_of_block() * 2;
  RingPlace place;
  for (int tile = split; tile < p.tiles; tile += p.splits, place.advance(p.stages)) {
    wait_at(&barriers.empty[place.stage], place.parity ^ 1);
    const int of_images = p.of_down.quotient(tile), line = (tile - of_images * p.down) * p.tile_lines;
    Barrier* full = &barriers.full[place.stage];
    uint8_t* to = ring + place.stage * p.stage_bytes();
    arrive_with_copies(full, bytes);
    for (int down = 0; down < p.planes_down; ++down)
      for (int across = 0; across < p.planes_across; ++across)
        copy_box(to + (down * p.planes_across + across) * p.x_bytes(), x, channel, across - p.pad[1],
                 line * p.stride - p.pad[0] + down, of_images * p.images, full);
    to += p.planes() * p.x_bytes();
    for (int shift = 0; shift < p.shifts; ++shift)
      copy_box(to + shift * p.dy_bytes(), dy, channel, 0, line + shift, of_images * p.images, full);
  }
}

// is_last: of two warpgroups with different taps.
template <typename T, bool is_last, int stride, int shifts, int columns>
__device__ void multiply_tiles(TapSums<shifts, columns>& sums, const uint8_t* ring, SumBarriers& barriers,
                               const Sizes& p, int split, int part, int half_unit, int warp) {
  constexpr int shift_warps = warpgroup_threads / warp_threads / shifts, pixel_units = Sizes::pixel_bytes / 16;
  constexpr uint32_t step_bytes = Sizes::step_pixels * Sizes::pixel_bytes, step_units = step_bytes / 16;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8, row = lane % 8;
  const int unit = part * p.part_units + 2 * (warp % shift_warps) + matrix % 2;
  const auto own =
      static_cast<uint32_t>(p.planes() * p.x_bytes() + warp / shift_warps * p.dy_bytes() +
                            (matrix / 2 * 8 + row) * Sizes::pixel_bytes + (unit % Sizes::block_units ^ row) * 16);
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  const auto plane_units = static_cast<uint32_t>(p.x_bytes() / 16),
             line_units = static_cast<uint32_t>(p.line_pixels * pixel_units);
  constexpr int planes_down = stride > 1 ? stride : shifts;
  const auto units_to = [&](int tap) {
    const int line = tap / Sizes::kernel, column = tap % Sizes::kernel;
    return (line % planes_down * stride + column % stride) * plane_units + line / planes_down * line_units +
           static_cast<uint32_t>(column / stride * pixel_units);
  };
  const int steps = p.steps();
  RingPlace place;
  int before = -1;  // the stage whose products may still be under way
  for (int tile = split; tile < p.tiles; tile += p.splits, place.advance(p.stages)) {
    wait_at(&barriers.full[place.stage], place.parity);
    const uint32_t stage = shared_address(ring) + static_cast<uint32_t>(place.stage * p.stage_bytes());
    uint32_t dy = stage + own, x = stage / 16 + static_cast<uint32_t>(part * p.part_units);
    const auto start = [&](LeftFragment& left, int step) {
      load_matrices_transposed_at(left.at, dy + step * step_bytes);
      begin_products();
      const auto units_of = [&](int i) { return units_to(is_last ? last_tap(stride, i) : i); };
      // With a stride of 2, two taps of 64 channels are one product.
      constexpr int taps_of_product = stride > 1 && columns == 64 ? 2 : 1;
#pragma unroll
      for (int i = 0; i < TapSums<shifts, columns>::count; i += taps_of_product) {
        const uint32_t from = units_of(i), further = taps_of_product > 1 ? units_of(i + 1) - from : 0;
        start_columns_product<T, taps_of_product * columns, true>(sums.at[i], left,
                                                                  shared_rows(x + step * step_units + from, further));
      }
      if constexpr (shifts == 1)
        start_columns_product<T, columns / 2, true>(
            sums.half, left, shared_rows(x + step * step_units + units_to(middle_tap) + half_unit));
      commit_products();
    };
    const auto give_back = [&] {
      if (before >= 0 && announces) arrive_at(&barriers.empty[before]);
      before = -1;
    };
    // One fragment is loaded while the products of the other one run.
    int step = 0;
    for (; step + 1 < steps; step += 2, dy += 2 * step_bytes, x += 2 * step_units) {
      LeftFragment left[2];
      start(left[0], 0);
      wait_for_products<1>();
      give_back();
      start(left[1], 1);
      wait_for_products<1>();
    }
    if (step < steps) {
      LeftFragment left;
      start(left, 0);
      wait_for_products<0>();
      give_back();
    }
    before = place.stage;
  }
  wait_for_products<0>();
#pragma unroll
  for (auto& of_tap : sums.at) settle(of_tap);
  if constexpr (shifts == 1) settle(sums.half);
}

// Writes the sums of a tap whose two channels belong to one group. channel: of y, in the first row; rows: units of
// rows; x_unit: the unit of x in the first column.
template <int tiles>
__device__ void write_tap(float* part, const float (&sums)[tiles][4], const Sizes& p, int channel, int rows, int x_unit,
                          int tap, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, width = p.units * unit_channels;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int unit = 2 * warp + half, group = unit / p.units, y_channel = channel + unit * unit_channels + lane / 4;
    if (unit >= rows || y_channel >= p.channels()) continue;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if ((x_unit + i) / p.units != group) continue;
      const int x_channel = (x_unit + i - group * p.units) * unit_channels + lane % 4 * 2;
      const int64_t at = (int64_t{y_channel} * Sizes::taps + tap) * width + x_channel;
      *reinterpret_cast<float2*>(part + at) = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
    }
  }
}

// Of the sums of first lines, which the first two warps have, and of second lines, which the last two warps have for
// the same channels, either gets the others' of some taps: the first ones of taps before first_of_second.
constexpr int first_of_second = middle_tap + 1;
template <int columns>
__device__ void join_lines(TapSums<2, columns>& sums, uint8_t* memory, int group, int warp) {
  constexpr int half = warpgroup_threads / 2;
  float4* mine = reinterpret_cast<float4*>(memory) + group * half + static_cast<int>(threadIdx.x) % half;
  const bool is_second = warp >= half / warp_threads;
  const auto each = [&](int first, int end, int shift, auto visit) {
#pragma unroll
    for (int tap = first; tap < end; ++tap)
#pragma unroll
      for (int tile = 0; tile < columns / 8; ++tile)
        visit(mine[(tap * (columns / 8) + tile) * Sizes::warpgroups * half], sums.at[tap + shift][tile]);
  };
  const auto leave = [](float4& place, const float(&own)[4]) { place = {own[0], own[1], own[2], own[3]}; };
  const auto add = [](const float4& place, float(&own)[4]) {
    own[0] += place.x, own[1] += place.y, own[2] += place.z, own[3] += place.w;
  };
  // Both warpgroups have read all of their boxes, so the sums may take their place.
  wait_for_both();
  if (is_second)
    each(0, first_of_second, Sizes::kernel, leave);
  else
    each(first_of_second, Sizes::taps, 0, leave);
  wait_for_both();
  if (is_second)
    each(first_of_second, Sizes::taps, Sizes::kernel, add);
  else
    each(0, first_of_second, 0, add);
}

template <typename T, int stride, int shifts, int columns>
__global__ void __launch_bounds__(Sizes::threads, 1)
    grouped_stationary_dw_kernel(float* __restrict__ partial, const __grid_constant__ CUtensorMap x,
                                 const __grid_constant__ CUtensorMap dy, const __grid_constant__ Sizes p,
                                 int64_t weights) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t memory[];
    __shared__ SumBarriers barriers;
    uint8_t* const ring = first_tile_border(memory);
    const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    const int split = p.of_blocks.quotient(block), channel = (block - split * p.channel_blocks) * p.channels_of_block();
    if (thread == 0) barriers.set_up(p.stages);
    __syncthreads();
    if (thread >= Sizes::computing_threads) {
      give_registers<Sizes::copying_registers>();
      if (thread == Sizes::computing_threads) load_tiles(ring, barriers, x, dy, p, channel, split);
      return;
    }
    take_registers<Sizes::computing_registers>();
    const int group = __shfl_sync(whole_warp, thread / warpgroup_threads, 0),
              warp = __shfl_sync(whole_warp, thread % warpgroup_threads / warp_threads, 0);
    write_zeros(ring, p);
    show_to_matrix_units();
    wait_for_both();
    float* part = partial + split * weights;
    TapSums<shifts, columns> sums;
    if constexpr (shifts == 1) {
      constexpr int half_units = columns / 16;
      const auto make = [&]<bool is_last>(std::bool_constant<is_last>) {
        multiply_tiles<T, is_last, stride>(sums, ring, barriers, p, split, 0, group * half_units, warp);
#pragma unroll
        for (int i = 0; i < middle_tap; ++i)
          write_tap(part, sums.at[i], p, channel, p.units_of_block(), 0, is_last ? last_tap(stride, i) : i, warp);
        write_tap(part, sums.half, p, channel, p.units_of_block(), group * half_units, middle_tap, warp);
      };
      if (group == 0)
        make(std::false_type());
      else
        make(std::true_type());
    } else {
      multiply_tiles<T, false, stride>(sums, ring, barriers, p, split, group, 0, warp);
      join_lines(sums, ring, group, warp);
      constexpr int line_warps = warpgroup_threads / warp_threads / shifts;
      const auto write = [&](int tap, const float(&of_tap)[columns / 8][4]) {
        write_tap(part, of_tap, p, channel + group * p.part_units * unit_channels, p.part_units, 0, tap,
                  warp % line_warps);
      };
      if (warp < line_warps) {
#pragma unroll
        for (int tap = 0; tap < first_of_second; ++tap) write(tap, sums.at[tap]);
      } else {
#pragma unroll
        for (int tap = first_of_second; tap < Sizes::taps; ++tap) write(tap, sums.at[tap + Sizes::kernel]);
      }
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t grouped_stationary_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                  const ConvolutionSizes& c, void* workspace, cudaStream_t stream) {
  const Sizes p(c);
  auto* partial = static_cast<float*>(workspace);
  const int64_t channels = p.channels();
  CUtensorMap x_map, dy_map;
  const ImageBoxes x_boxes{{c.batch, p.in[0], p.in[1], channels},
                           {p.images, p.plane_lines, p.line_pixels},
                           {p.planes_down, p.planes_across},
                           p.channels_of_block()};
  const ImageBoxes dy_boxes{{c.batch, p.out[0], p.out[1], channels},
                            {p.images, p.dy_lines, p.line_pixels},
                            {p.shifts, 1},
                            p.channels_of_block()};
  if (const cudaError_t error = map_image(x_map, x, x_boxes)) return error;
  if (const cudaError_t error = map_image(dy_map, dy, dy_boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), Sizes::threads, bytes, stream>>>(partial, x_map, dy_map, p,
                                                                                   c.weights());
      if (const cudaError_t error = cudaGetLastError()) return error;
      return sum_parts(to, dw, partial, p.splits, c.weights(), stream);
    };
    if (p.stride == 2)
      return p.columns() == 48 ? run(grouped_stationary_dw_kernel<T, 2, 1, 48>)
                               : run(grouped_stationary_dw_kernel<T, 2, 1, 64>);
    switch (p.columns()) {
      case 24: return run(grouped_stationary_dw_kernel<T, 1, 2, 24>);
      case 32: return run(grouped_stationary_dw_kernel<T, 1, 2, 32>);
      case 48: return run(grouped_stationary_dw_kernel<T, 1, 1, 48>);
      default: return run(grouped_stationary_dw_kernel<T, 1, 1, 64>);
    }
  });
}

}  // namespace plimsoll::cuda
