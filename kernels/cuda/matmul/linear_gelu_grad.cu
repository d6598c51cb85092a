#include "kernels/cuda/matmul/linear_gelu_grad.h"

#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/matmul/finished_product.cuh"

#include <algorithm>

// Serves linear_gelu_grad ("warpgroup_gelu"): dx = (dy w) * gelu'(x), both forms. Reads dy, w and x once and writes dx
// once; sums are f32, and the product is rounded before the slope multiplies it.

namespace plimsoll::cuda {
namespace {

template <bool tanh_form>
struct Slope {
  static __device__ float apply(float x, float product) {
    return product * (tanh_form ? narrow_gelu_tanh_slope(x) : narrow_gelu_slope(x));
  }
};

template <typename T, bool tanh_form, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    linear_gelu_grad_kernel(const __grid_constant__ CUtensorMap dy, const __grid_constant__ CUtensorMap w,
                            FinishedTiles tiles, const T* __restrict__ x, T* __restrict__ dx) {
  if constexpr (has_warpgroups)
    make_finished_tiles<T, Slope<tanh_form>, Tile>(dy, w, tiles, x, dx);
  else
    __trap();
}

template <typename T, bool tanh_form, typename Tile>
cudaError_t launch(const LinearGeluGradCall& call, cudaStream_t stream) {
  const FinishedTiles tiles{.rows = static_cast<int>(call.rows),
                            .columns = static_cast<int>(call.columns),
                            .steps = static_cast<int>(divide_up(call.depth, Tile::step)),
                            .down = static_cast<int>(divide_up(call.rows, Tile::rows)),
                            .across = static_cast<int>(divide_up(call.columns, Tile::columns))};
  CUtensorMap dy, w;
  if (cudaError_t error = map_matrix(dy, call.dy, call.rows, call.depth, Tile::rows); error != cudaSuccess)
    return error;
  const cudaError_t mapped = Tile::right_in_rows ? map_matrix(w, call.w, call.depth, call.columns, Tile::step)
                                                 : map_matrix(w, call.w, call.columns, call.depth, Tile::columns);
  if (mapped != cudaSuccess) return mapped;
  auto* kernel = linear_gelu_grad_kernel<T, tanh_form, Tile>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared_bytes);
      error != cudaSuccess)
    return error;
  const int blocks = std::min(tiles.down * tiles.across, call.multiprocessors);
  kernel<<<static_cast<unsigned>(blocks), Tile::threads, Tile::shared_bytes, stream>>>(
      dy, w, tiles, static_cast<const T*>(call.x), static_cast<T*>(call.dx));
  return cudaGetLastError();
}

template <typename T, bool tanh_form>
cudaError_t launch(const LinearGeluGradCall& call, cudaStream_t stream) {
  return call.transpose_w ? launch<T, tanh_form, FinishedTile<false>>(call, stream)
                          : launch<T, tanh_form, FinishedTile<true>>(call, stream);
}

template <typename T>
cudaError_t launch(const LinearGeluGradCall& call, cudaStream_t stream) {
  return call.tanh_form ? launch<T, true>(call, stream) : launch<T, false>(call, stream);
}

}  // namespace

cudaError_t linear_gelu_grad(const LinearGeluGradCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
