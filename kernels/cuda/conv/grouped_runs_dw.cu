#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_weight_runs.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/run_copies.cuh"
#include "kernels/cuda/conv/run_products.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Weight gradients of convolutions of groups by warpgroups of Hopper, whose products sum over positions: tiles are
// operands as they lie, a tap being a distance. Reads dy and x once for each part of the taps, but for the rims of
// tiles, and writes the sums of every block, which a second launch adds up in a fixed order.

namespace plimsoll::cuda {
namespace {

using Barriers = StageBarriers<GroupedWeightRuns::max_stages>;

struct WorkOfBlock {
  int first_group, groups, first_tap, x_unit, y_unit, split;

  __device__ explicit WorkOfBlock(const GroupedWeightRuns& p) {
    Digits digits{blockIdx.x};
    first_group = digits.take(p.group_blocks) * p.block_groups;
    groups = min(p.block_groups, p.groups - first_group);
    first_tap = digits.take(p.tap_parts) * GroupedWeightRuns::block_taps;
    x_unit = digits.take(p.x_parts) * p.x_units;
    y_unit = digits.take(p.y_parts) * p.y_units;
    split = static_cast<int>(digits.rest);
  }
};

__device__ void copy_operands(uint4* stages, Barriers& barriers, const void* x, const void* dy,
                              const GroupedWeightRuns& p, const WorkOfBlock& mine) {
  constexpr int threads = GroupedWeightRuns::copying_warps * warp_threads;
  const int thread = static_cast<int>(threadIdx.x) - (GroupedWeightRuns::threads - threads);
  const RunAxis &down = p.runs.axes[0], &across = p.runs.axes[1];
  const int no_class[2] = {0, 0}, of_y[2] = {down.out, across.out}, lead[2] = {down.lead, across.lead};
  const PlaneCopies dy_copies(
      dy, p.runs, {down.out, across.out}, {1, 1},
      {p.groups, p.y_channels, p.y_word_bytes, mine.first_group, mine.groups, mine.y_unit, p.y_units}, thread, threads);
  const PlaneCopies x_copies(
      x, p.runs, {down.in, across.in}, {down.in_classes, across.in_classes},
      {p.groups, p.x_channels, p.x_word_bytes, mine.first_group, mine.groups, mine.x_unit, p.x_units}, thread, threads);
  copy_tiles(barriers, mine.split, p.items, p.splits, p.stages, [&](int64_t item, int stage) {
    const unsigned begin = static_cast<unsigned>(item) * static_cast<unsigned>(p.tile);
    uint4* to = stages + stage * p.stage_units;
    dy_copies.start(to + dy_copies.unit() * p.dy_plane_units, begin, p.tile, no_class, of_y, no_class);
    for (int i = 0; i < p.runs.classes; ++i) {
      const RunPlanes& planes = p.runs.planes[i];
      x_copies.start(to + p.x_at + planes.at + x_copies.unit() * planes.plane_units,
                     begin + static_cast<unsigned>(planes.first), planes.positions, planes.in_class, planes.pixels,
                     lead);
    }
  });
}

// A block's part of dw: of each product what channels of the same group have in common.
template <int columns_of_x>
__device__ void write_part(float* partial, const float (&sums)[columns_of_x][4], int tap, const GroupedWeightRuns& p,
                           const WorkOfBlock& mine) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int group_rows = p.y_units * unit_channels, group_columns = p.x_units * unit_channels;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp % 4 * 16 + half * 8 + lane / 4, group = row / group_rows;
    const int channel = mine.y_unit * unit_channels + row - group * group_rows;
    if (group >= mine.groups || channel >= p.y_channels) continue;
    // Of groups that are joined, those of one of them.
    const int width = p.x_channels / p.joined, part = channel / (p.y_channels / p.joined);
    const int first = group * group_columns + part * width - mine.x_unit * unit_channels;
    float* to = partial + ((int64_t{mine.first_group + group} * p.y_channels + channel) * p.taps + tap) * width;
#pragma unroll
    for (int n = 0; n < columns_of_x; ++n) {
      const int column = n * unit_channels + lane % 4 * 2 - first;
      if (column < 0 || column >= width) continue;
      if (width % 2 == 0) {
        *reinterpret_cast<float2*>(to + column) = {sums[n][2 * half], sums[n][2 * half + 1]};
      } else {
        to[column] = sums[n][2 * half];
        if (column + 1 < width) to[column + 1] = sums[n][2 * half + 1];
      }
    }
  }
}

template <typename T, int units, int tile>
__device__ void multiply_operands(float* partial, const uint4* stages, Barriers& barriers, const GroupedWeightRuns& p,
                                  const ConvolutionSizes& c, const WorkOfBlock& mine) {
  constexpr int taps = GroupedWeightRuns::warpgroup_taps;
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
  const int first_tap = mine.first_tap + warp / 4 * taps;
  const uint32_t stages_at = shared_address(stages) >> 4;
  const uint64_t of_dy = plain_matrix(stages_at, 8, static_cast<uint32_t>(p.dy_plane_units));
  uint64_t of_tap[taps];
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    // Taps beyond the last are computed in vain.
    const int tap = min(first_tap + i, p.taps - 1);
    const RunTap row = RunAxis::tap(c, false, 0, tap / c.kernel[1]),
                 column = RunAxis::tap(c, false, 1, tap % c.kernel[1]);
    const RunPlanes& planes = p.runs.planes_of(row, column);
    of_tap[i] = plain_matrix(stages_at + static_cast<uint32_t>(p.x_at + p.runs.unit_of(row, column, 0)), 8,
                             static_cast<uint32_t>(planes.plane_units));
  }
  float sums[taps][units][4] = {};
  RingPlace at;
  int multiplied = -1;
  for (int64_t item = mine.split; item < p.items; item += p.splits, at.advance(p.stages)) {
    wait_at(&barriers.full[at.stage], at.parity);
    const int moved = at.stage * p.stage_units;
    begin_products();
#pragma unroll
    for (int position = 0; position < tile; position += 16)
#pragma unroll
      for (int i = 0; i < taps; ++i)
        start_run_product<T, units, Along::Rows, Along::Rows>(sums[i], of_dy + (moved + position),
                                                              of_tap[i] + (moved + position), true);
    commit_products();
    // The matrix units go on with this tile while the one before is given back.
    wait_for_products<1>();
    if (multiplied >= 0) arrive_as_warp_at(&barriers.empty[multiplied]);
    multiplied = at.stage;
  }
  wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < taps; ++i) {
    settle(sums[i]);
    if (first_tap + i < p.taps) write_part<units>(partial + mine.split * c.weights(), sums[i], first_tap + i, p, mine);
  }
}

template <typename T, int units, int tile>
__global__ void __launch_bounds__(GroupedWeightRuns::threads, 1)
    grouped_weight_runs_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                               const __grid_constant__ GroupedWeightRuns p,
                               const __grid_constant__ ConvolutionSizes c) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint4 shared[];
    __shared__ Barriers barriers;
    constexpr int multiplying = GroupedWeightRuns::warpgroups * 4;
    const WorkOfBlock mine(p);
    if (threadIdx.x == 0) barriers.set_up(p.stages, GroupedWeightRuns::copying_warps * warp_threads, multiplying);
    __syncthreads();
    if (threadIdx.x >= multiplying * warp_threads)
      copy_operands(shared, barriers, x, dy, p, mine);
    else
      multiply_operands<T, units, tile>(partial, shared, barriers, p, c, mine);
  } else {
    __trap();
  }
}

template <typename Visit>
cudaError_t with_tile(int tile, Visit visit) {
  switch (tile) {
    case 64: return visit(std::integral_constant<int, 64>());
    case 128: return visit(std::integral_constant<int, 128>());
    case 256: return visit(std::integral_constant<int, 256>());
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t grouped_runs_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                            const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const GroupedWeightRuns p(sizes);
  const size_t bytes = static_cast<size_t>(p.shared_units()) * sizeof(uint4);
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_any_units(p.block_groups * p.x_units, [&](auto units) {
      return with_tile(p.tile, [&](auto tile) {
        const auto kernel = grouped_weight_runs_kernel<T, decltype(units)::value, decltype(tile)::value>;
        if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
        kernel<<<static_cast<unsigned>(p.blocks()), GroupedWeightRuns::threads, bytes, stream>>>(
            partial, static_cast<const T*>(x), static_cast<const T*>(dy), p, sizes);
        return cudaGetLastError();
      });
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
