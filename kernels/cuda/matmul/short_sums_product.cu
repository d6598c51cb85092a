#include "kernels/cuda/matmul/short_sums_product.h"

#include "kernels/cuda/matmul/finished_launch.cuh"

// Serves linear ("warpgroup"): y = x w + bias. Reads x, w and the bias once and writes y once; sums are f32. Its tiles
// are those that finish a product, since with short sums it is y's way to memory that takes the time.

namespace plimsoll::cuda {
namespace {

struct AsItIs {
  static constexpr bool adds_bias = true, reads_kept = false, writes_h = false;
  static __device__ float apply(float, float y) { return y; }
};

}  // namespace

cudaError_t short_sums_product(const ShortSumsCall& call, cudaStream_t stream) {
  const FinishedCall finished{.rows = call.rows,
                              .depth = call.depth,
                              .columns = call.columns,
                              .left = call.x,
                              .right = call.w,
                              .bias = call.bias,
                              .y = call.y,
                              .type = call.type,
                              .right_is_transposed = call.transpose_w,
                              .multiprocessors = call.multiprocessors};
  return call.type == Scalar::BF16 ? launch_short_sums<bf16, AsItIs>(finished, stream)
                                   : launch_short_sums<f16, AsItIs>(finished, stream);
}

}  // namespace plimsoll::cuda
