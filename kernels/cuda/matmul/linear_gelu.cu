#include "kernels/cuda/matmul/linear_gelu.h"

#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/matmul/finished_launch.cuh"

// Serves linear_gelu ("warpgroup_gelu"): h = x w + bias and y = gelu(h), both forms. Reads x, w and the bias once and
// writes h and y once; sums are f32, and h is rounded before gelu is of it.

namespace plimsoll::cuda {
namespace {

template <bool tanh_form>
struct Gelu {
  static constexpr bool adds_bias = true, reads_kept = false, writes_h = true;
  static __device__ float apply(float, float h) { return tanh_form ? narrow_gelu_tanh(h) : narrow_gelu(h); }
};

}  // namespace

cudaError_t linear_gelu(const LinearGeluCall& call, cudaStream_t stream) {
  return launch_finished<Gelu>({.rows = call.rows,
                                .depth = call.depth,
                                .columns = call.columns,
                                .left = call.x,
                                .right = call.w,
                                .bias = call.bias,
                                .h = call.h,
                                .y = call.y,
                                .type = call.type,
                                .right_is_transposed = call.transpose_w,
                                .tanh_form = call.tanh_form,
                                .multiprocessors = call.multiprocessors},
                               stream);
}

}  // namespace plimsoll::cuda
