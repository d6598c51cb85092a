#include "kernels/cuda/matmul/linear_gelu_grad.h"

#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/matmul/finished_launch.cuh"

// Serves linear_gelu_grad ("warpgroup_gelu"): dx = (dy w) * gelu'(x), both forms. Reads dy, w and x once and writes dx
// once; sums are f32, and the product is rounded before the slope multiplies it.

namespace plimsoll::cuda {
namespace {

template <bool tanh_form>
struct Slope {
  static constexpr bool adds_bias = false, reads_kept = true, writes_h = false;
  static __device__ float apply(float x, float product) {
    return product * (tanh_form ? narrow_gelu_tanh_slope(x) : narrow_gelu_slope(x));
  }
};

}  // namespace

cudaError_t linear_gelu_grad(const LinearGeluGradCall& call, cudaStream_t stream) {
  return launch_finished<Slope>({.rows = call.rows,
                                 .depth = call.depth,
                                 .columns = call.columns,
                                 .left = call.dy,
                                 .right = call.w,
                                 .kept = call.x,
                                 .y = call.dx,
                                 .type = call.type,
                                 .right_is_transposed = call.transpose_w,
                                 .tanh_form = call.tanh_form,
                                 .multiprocessors = call.multiprocessors},
                                stream);
}

}  // namespace plimsoll::cuda
