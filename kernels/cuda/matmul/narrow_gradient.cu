#include "kernels/cuda/matmul/narrow_gradient.h"

#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// The weight gradient of a layer with few inputs or outputs, such as an adapter's: a product with up to 64 columns that
// is summed over all rows, bound by reading the wide operand once. Blocks take 128 of its columns over a part of the
// rows; two tiles of 64 rows are on their way while a third is multiplied on the matrix units. A second launch adds up
// the parts. Reads both operands once, the narrow one once for every 128 columns, and moves parts() times dw twice.

namespace plimsoll::cuda {
namespace {

using Sizes = NarrowGradientSizes;
constexpr int tile_rows = Sizes::tile_rows, block_columns = Sizes::block_columns, unit = Sizes::unit;
constexpr int warps = block_columns / 16, threads = warps * warp_threads, stages = 3;

// Rows of a tile in shared memory lie an odd number of 16-byte units apart: eight of them are read without conflicts.
template <int few_tiles>
struct Stage {
  static constexpr int wide_row = (block_columns / unit | 1) * unit, narrow_row = (few_tiles | 1) * unit;
  static constexpr int narrow_at = tile_rows * wide_row, elements = narrow_at + tile_rows * narrow_row;
};

template <typename T, int few_tiles>
__global__ void __launch_bounds__(threads, 2) narrow_gradient_kernel(const __grid_constant__ NarrowGradient call) {
  using Tile = Stage<few_tiles>;
  extern __shared__ uint4 shared[];
  T* const tiles = reinterpret_cast<T*>(shared);
  const Sizes& sizes = call.sizes;
  const int first_column = static_cast<int>(blockIdx.x) * block_columns;
  const int64_t first_tile = blockIdx.y * sizes.tiles_of_part();
  const int count = static_cast<int>(min(sizes.tiles_of_part(), sizes.tiles() - first_tile));
  const auto *wide = static_cast<const T*>(call.wide), *few = static_cast<const T*>(call.narrow);

  // Zeros stand for what is beyond the last row or column.
  const auto copy_tile = [&](int tile) {
    T* const to = tiles + tile % stages * Tile::elements;
    const int64_t first_row = (first_tile + tile) * tile_rows;
    for (int i = static_cast<int>(threadIdx.x); i < tile_rows * block_columns / unit; i += threads) {
      const int row = i / (block_columns / unit), at = i % (block_columns / unit) * unit;
      const bool inside = first_row + row < sizes.rows && first_column + at < sizes.columns;
      copy_async(to + row * Tile::wide_row + at,
                 inside ? wide + (first_row + row) * sizes.columns + first_column + at : wide, inside);
    }
    for (int i = static_cast<int>(threadIdx.x); i < tile_rows * few_tiles; i += threads) {
      const int row = i / few_tiles, at = i % few_tiles * unit;
      const bool inside = first_row + row < sizes.rows && at < sizes.few_columns;
      copy_async(to + Tile::narrow_at + row * Tile::narrow_row + at,
                 inside ? few + (first_row + row) * sizes.few_columns + at : few, inside);
    }
  };

  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int matrix = lane / 8, row = lane % 8;
  float sums[few_tiles][4] = {};
  for (int tile = 0; tile < stages - 1; ++tile) {
    if (tile < count) copy_tile(tile);
    commit_copies();
  }
  for (int tile = 0; tile < count; ++tile) {
    wait_for_copies<stages - 2>();
    __syncthreads();  // the tile is there, and all warps are done with the one before, whose place is next
    if (tile + stages - 1 < count) copy_tile(tile + stages - 1);
    commit_copies();
    const T* const from = tiles + tile % stages * Tile::elements;
    const T* const of_wide = from + (matrix / 2 * 8 + row) * Tile::wide_row + warp * 16 + matrix % 2 * 8;
    const T* const of_narrow = from + Tile::narrow_at + (matrix % 2 * 8 + row) * Tile::narrow_row;
#pragma unroll
    for (int step = 0; step < tile_rows; step += 16) {
      LeftFragment left;
      load_matrices_transposed(left.at, of_wide + step * Tile::wide_row);
#pragma unroll
      for (int i = 0; i < few_tiles; i += 2) {
        const int second = i + 1 < few_tiles ? matrix / 2 : 0;  // not there: repeats the first
        RightFragments right;
        load_matrices_transposed(right.at, of_narrow + step * Tile::narrow_row + (i + second) * unit);
        multiply_add<T>(sums[i], left, right, 0);
        if (i + 1 < few_tiles) multiply_add<T>(sums[i + 1], left, right, 1);
      }
    }
  }

  float* const partial = call.workspace + blockIdx.y * sizes.weights();
#pragma unroll
  for (int i = 0; i < few_tiles; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t column = first_column + warp * 16 + k / 2 * 8 + lane / 4, at = i * 8 + lane % 4 * 2 + k % 2;
      if (column >= sizes.columns || at >= sizes.few_columns) continue;
      partial[call.few == NarrowSide::Columns ? column * sizes.few_columns + at : at * sizes.columns + column] =
          sums[i][k];
    }
}

// dw[i] = the sum over the parts of partial[part][i], plus the addend.
template <typename To>
__global__ void __launch_bounds__(combine_threads)
    sum_parts_and_addend(To* dw, const To* addend, const float* partial, int64_t parts, int64_t count, int across) {
  combine_partials(partial, parts, count, across, Add(), 0.0f,
                   [&](int64_t at, float total) { dw[at] = narrow<To>(addend ? total + widen(addend[at]) : total); });
}

template <typename To>
cudaError_t sum_up(const NarrowGradient& call, cudaStream_t stream) {
  const int64_t parts = call.sizes.parts(), count = call.sizes.weights();
  sum_parts_and_addend<<<combining_blocks(parts, count), combine_threads, 0, stream>>>(
      static_cast<To*>(call.dw), static_cast<const To*>(call.addend), call.workspace, parts, count,
      combined_columns(parts));
  return cudaGetLastError();
}

template <typename T, int few_tiles>
cudaError_t multiply(const NarrowGradient& call, cudaStream_t stream) {
  const size_t bytes = size_t{stages} * Stage<few_tiles>::elements * sizeof(T);
  const auto kernel = narrow_gradient_kernel<T, few_tiles>;
  if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
  const dim3 blocks(static_cast<unsigned>(call.sizes.column_blocks()), static_cast<unsigned>(call.sizes.parts()));
  kernel<<<blocks, threads, bytes, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t narrow_gradient(const NarrowGradient& call, Scalar type, Scalar to, cudaStream_t stream) {
  return with_16_bits(type, [&]<typename T>(T*) {
    const int64_t few = call.sizes.few_columns;
    const cudaError_t error = few <= 8    ? multiply<T, 1>(call, stream)
                              : few <= 16 ? multiply<T, 2>(call, stream)
                              : few <= 32 ? multiply<T, 4>(call, stream)
                                          : multiply<T, 8>(call, stream);
    if (error != cudaSuccess) return error;
    return to == type ? sum_up<T>(call, stream) : sum_up<float>(call, stream);
  });
}

}  // namespace plimsoll::cuda
