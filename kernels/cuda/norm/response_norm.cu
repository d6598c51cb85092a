#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/norm/group_norm.h"

// Serves lrn and lrn_grad, x [batch, channels, inner]. x is read and y written once. With s = bias + alpha / size *
// (sum of squares over the channels around):
//   y = x * s^-beta,  dx_j = dy_j * s_j^-beta - 2 alpha beta / size * x_j * sum_c dy_c x_c s_c^(-beta-1),
// the sum over the channels c whose surroundings hold j. One thread per element; neighbours come from the cache.

namespace plimsoll::cuda {
namespace {

// Channel c of one position in one sample.
template <typename T>
struct Position {
  const ResponseShape& shape;
  const T* x;

  __device__ float at(int64_t c) const { return widen(x[c * shape.inner]); }
  // An even size reaches one further up.
  __device__ float base(int64_t c) const {
    const int64_t low = c - (shape.size - 1) / 2, high = c + shape.size / 2;
    float squares = 0;
    for (int64_t j = low < 0 ? 0 : low; j <= high && j < shape.channels; ++j) squares += at(j) * at(j);
    return shape.bias + shape.alpha / static_cast<float>(shape.size) * squares;
  }
};

template <typename T>
__global__ void lrn_kernel(ResponseShape shape, T* y, const T* x) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= shape.batch * shape.channels * shape.inner) return;
  const int64_t c = i / shape.inner % shape.channels;
  const Position<T> position{shape, x + i - c * shape.inner};
  y[i] = narrow<T>(position.at(c) * powf(position.base(c), -shape.beta));
}

template <typename T>
__global__ void lrn_grad_kernel(ResponseShape shape, T* dx, const T* x, const T* dy) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= shape.batch * shape.channels * shape.inner) return;
  const int64_t j = i / shape.inner % shape.channels, start = i - j * shape.inner;
  const Position<T> position{shape, x + start}, grad{shape, dy + start};
  const int64_t low = j - shape.size / 2, high = j + (shape.size - 1) / 2;
  float pull = 0;
  for (int64_t c = low < 0 ? 0 : low; c <= high && c < shape.channels; ++c)
    pull += grad.at(c) * position.at(c) * powf(position.base(c), -shape.beta - 1);
  const float rate = 2 * shape.beta * shape.alpha / static_cast<float>(shape.size);
  dx[i] = narrow<T>(grad.at(j) * powf(position.base(j), -shape.beta) - rate * position.at(j) * pull);
}

int64_t elements_of(const ResponseShape& shape) { return shape.batch * shape.channels * shape.inner; }

}  // namespace

cudaError_t lrn(const ResponseShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream) {
  if (elements_of(shape) == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(elements_of(shape));
  return with_f32_math(type, [&]<typename T>(T*) {
    lrn_kernel<<<blocks, block_threads, 0, stream>>>(shape, static_cast<T*>(y), static_cast<const T*>(x));
  });
}

cudaError_t lrn_grad(const ResponseShape& shape, Scalar type, void* dx, const void* x, const void* dy,
                     cudaStream_t stream) {
  if (elements_of(shape) == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(elements_of(shape));
  return with_f32_math(type, [&]<typename T>(T*) {
    lrn_grad_kernel<<<blocks, block_threads, 0, stream>>>(shape, static_cast<T*>(dx), static_cast<const T*>(x),
                                                          static_cast<const T*>(dy));
  });
}

}  // namespace plimsoll::cuda
