#pragma once

// Launches products whose results go through a function: chooses the tile by the depth and by how operands lie.

#include "kernels/cuda/matmul/finished_sizes.h"
#include "kernels/cuda/matmul/halved_product.cuh"
#include "kernels/scalar.h"

#include <algorithm>

namespace plimsoll::cuda {

struct FinishedCall {
  int64_t rows, depth, columns;  // depth and columns are multiples of 8
  const void* left;              // [rows, depth]
  const void* right;             // [depth, columns], or [columns, depth] where it is transposed
  const void *bias, *kept;       // as in FinishedData
  void *h, *y;
  Scalar type;  // BF16 or F16
  bool right_is_transposed, tanh_form;
  int multiprocessors;
};

template <typename T, typename F, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    finished_product_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                            FinishedTiles tiles, FinishedData<T> data) {
  if constexpr (has_warpgroups)
    make_finished_tiles<T, F, Tile>(left, right, tiles, data);
  else
    __trap();
}

template <typename T, typename F, typename Tile>
cudaError_t launch_tiles(const FinishedCall& call, cudaStream_t stream) {
  const FinishedTiles tiles{.rows = static_cast<int>(call.rows),
                            .columns = static_cast<int>(call.columns),
                            .steps = static_cast<int>(divide_up(call.depth, Tile::step)),
                            .down = static_cast<int>(divide_up(call.rows, Tile::rows)),
                            .across = static_cast<int>(divide_up(call.columns, Tile::columns))};
  CUtensorMap left, right;
  if (cudaError_t error = map_matrix(left, call.left, call.rows, call.depth, Tile::rows); error != cudaSuccess)
    return error;
  const cudaError_t mapped = Tile::right_in_rows
                                 ? map_matrix(right, call.right, call.depth, call.columns, Tile::step)
                                 : map_matrix(right, call.right, call.columns, call.depth, Tile::columns);
  if (mapped != cudaSuccess) return mapped;
  auto* kernel = finished_product_kernel<T, F, Tile>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared_bytes);
      error != cudaSuccess)
    return error;
  const int blocks = std::min(tiles.down * tiles.across, call.multiprocessors);
  kernel<<<static_cast<unsigned>(blocks), Tile::threads, Tile::shared_bytes, stream>>>(
      left, right, tiles,
      {static_cast<const T*>(call.bias), static_cast<const T*>(call.kept), static_cast<T*>(call.h),
       static_cast<T*>(call.y)});
  return cudaGetLastError();
}

template <typename T, typename F, int columns>
cudaError_t launch_columns(const FinishedCall& call, cudaStream_t stream) {
  return call.right_is_transposed ? launch_tiles<T, F, FinishedTile<false, 1, columns>>(call, stream)
                                  : launch_tiles<T, F, FinishedTile<true, 1, columns>>(call, stream);
}

template <typename T, typename F>
cudaError_t launch_short_sums(const FinishedCall& call, cudaStream_t stream) {
  switch (finished_tile_columns(call.columns)) {
    case 96: return launch_columns<T, F, 96>(call, stream);
    case 192: return launch_columns<T, F, 192>(call, stream);
    default: return launch_columns<T, F, 256>(call, stream);
  }
}

template <typename T, typename F>
cudaError_t launch_finished(const FinishedCall& call, cudaStream_t stream) {
  if constexpr (F::reads_kept) {
    if (call.depth >= finished_parts_depth)
      return call.right_is_transposed ? launch_tiles<T, F, FinishedTile<false, 2>>(call, stream)
                                      : launch_tiles<T, F, FinishedTile<true, 2>>(call, stream);
  } else {
    if (call.depth >= finished_halves_depth)
      return call.right_is_transposed ? launch_tiles<T, F, HalvedTile<false>>(call, stream)
                                      : launch_tiles<T, F, HalvedTile<true>>(call, stream);
  }
  return launch_short_sums<T, F>(call, stream);
}

// F<tanh_form> is the function.
template <template <bool> class F>
cudaError_t launch_finished(const FinishedCall& call, cudaStream_t stream) {
  if (call.type == Scalar::BF16)
    return call.tanh_form ? launch_finished<bf16, F<true>>(call, stream)
                          : launch_finished<bf16, F<false>>(call, stream);
  return call.tanh_form ? launch_finished<f16, F<true>>(call, stream) : launch_finished<f16, F<false>>(call, stream);
}

}  // namespace plimsoll::cuda
