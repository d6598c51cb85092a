#include "kernels/cuda/matmul/moments_product.h"

#include "kernels/cuda/matmul/column_product.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/moments.cuh"

// Serves conv_moments ("warpgroup_moments"): y = x w^T with the mean and the variance of each column of y as it is
// rounded. Reads x once, or once for each of a few tiles of columns that run at the same time, and writes y once; sums
// are f32. Blocks leave statistics of their columns, which a second launch merges in the order of blocks.

namespace plimsoll::cuda {
namespace {

// A lane has eight columns of every so many rows, the same ones of all tiles.
template <typename T, typename Tile>
__device__ void finish_tiles(const ColumnShared<Tile>& shared, const ColumnProduct& t, Moments* partials) {
  constexpr int words = Tile::columns / 8, rows_at_once = Tile::finishing_threads / words;
  constexpr int turns = warpgroup_rows / rows_at_once;
  const int thread = static_cast<int>(threadIdx.x) % Tile::finishing_threads;
  const int word = thread % words, first_row = thread / words;
  const ColumnWork work(t);
  const int column = work.column * Tile::columns;
  PivotSums sums[8];
  int count = 0;
  uint32_t parity = 0;
  for (int tile = work.first; tile < t.down; tile += work.step, parity ^= 1) {
#pragma unroll 1
    for (int group = 0; group < Tile::groups; ++group) {
      const int rows = min(t.rows - tile * Tile::rows - group * warpgroup_rows, warpgroup_rows);
      const int own = rows > first_row ? (rows - first_row + rows_at_once - 1) / rows_at_once : 0;
      const uint8_t* from = shared.staged + group * Tile::staged_group + word / 8 * Tile::box_bytes;
      const auto load = [&](int turn) {
        const int row = first_row + turn * rows_at_once;
        return load_packed<8>(reinterpret_cast<const T*>(from + row * 128 + (word % 8 ^ row % 8) * 16));
      };
      const auto add = [&](const Packed<T, 8>& loaded) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i].add(loaded[i]);
      };
      wait_at(shared.there + group, parity);
      if (count == 0) {
        const Packed<T, 8> first = load(0);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i].pivot = first[i];
      }
      if (rows == warpgroup_rows) {
        // Without conditions, so that loads stand together in front of the sums.
        constexpr int in_flight = turns < 8 ? turns : 8;
#pragma unroll
        for (int turn = 0; turn < turns; turn += in_flight) {
          Packed<T, 8> loaded[in_flight];
#pragma unroll
          for (int k = 0; k < in_flight; ++k) loaded[k] = load(turn + k);
#pragma unroll
          for (int k = 0; k < in_flight; ++k) add(loaded[k]);
        }
      } else {
#pragma unroll 1
        for (int turn = 0; turn < own; ++turn) add(load(turn));
      }
      count += own;
      arrive_as_warp_at(shared.read + group);
    }
  }
  // Threads with the same columns merge theirs in the order of rows, in the memory that held the last sums.
  for (int group = 0; group < Tile::groups; ++group) wait_at(shared.read + group, parity ^ 1);
  auto* of_threads = reinterpret_cast<Moments*>(shared.staged);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    of_threads[first_row * Tile::columns + word * 8 + i] = sums[i].moments(static_cast<float>(count));
  wait_for_finishing_threads<Tile>();
  for (int c = thread; c < Tile::columns && column + c < t.columns; c += Tile::finishing_threads) {
    Moments total = of_threads[c];
    for (int r = 1; r < rows_at_once; ++r) total = Merge()(total, of_threads[r * Tile::columns + c]);
    partials[int64_t{work.first} * t.columns + column + c] = total;
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    moments_product_kernel(const __grid_constant__ ColumnMaps<0> maps, ColumnProduct tiles, Moments* partials) {
  if constexpr (has_warpgroups)
    make_column_tiles<T, Tile>(maps, tiles,
                               [&](const ColumnShared<Tile>& shared) { finish_tiles<T>(shared, tiles, partials); });
  else
    __trap();
}

__global__ void __launch_bounds__(merge_across* merge_down)
    merge_blocks_kernel(const Moments* partials, int64_t parts, int64_t columns, float* mean, float* var) {
  const int64_t c = int64_t{blockIdx.x} * merge_across + threadIdx.x;
  const Moments total = combine_parts(partials, parts, columns, c, Merge(), Moments{0, 0, 0});
  if (threadIdx.y != 0 || c >= columns) return;
  mean[c] = total.mean;
  var[c] = total.squares / total.count;
}

template <typename T, int columns, bool keeps_right>
cudaError_t launch(const MomentsProductCall& call, cudaStream_t stream) {
  using Tile = ColumnTile<columns, keeps_right, false, 0>;
  const ColumnTiling& tiling = call.tiling;
  ColumnMaps<0> maps;
  if (cudaError_t error = map_operands<Tile>(maps, tiling.sizes, call.left, call.right, call.y); error != cudaSuccess)
    return error;
  auto* partials = reinterpret_cast<Moments*>(call.workspace);
  if (cudaError_t error =
          launch_columns<Tile>(tiling, stream, moments_product_kernel<T, Tile>, maps, column_product(tiling), partials);
      error != cudaSuccess)
    return error;
  const TileGrid merging = merge_grid(tiling.sizes.columns);
  merge_blocks_kernel<<<merging.grid, merging.block, 0, stream>>>(partials, tiling.row_blocks, tiling.sizes.columns,
                                                                  call.mean, call.var);
  return cudaGetLastError();
}

template <typename T, int columns>
cudaError_t launch(const MomentsProductCall& call, cudaStream_t stream) {
  return call.tiling.keeps_right ? launch<T, columns, true>(call, stream) : launch<T, columns, false>(call, stream);
}

template <typename T>
cudaError_t launch(const MomentsProductCall& call, cudaStream_t stream) {
  if (call.tiling.tile_columns == 64) return launch<T, 64>(call, stream);
  return call.tiling.tile_columns == 128 ? launch<T, 128>(call, stream) : launch<T, 256>(call, stream);
}

}  // namespace

cudaError_t moments_product(const MomentsProductCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
