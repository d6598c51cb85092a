#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/move/move.h"

// Serves pad_grad. dy is read and dx written once. The gradient of padding by repetition: every element of dx adds up
// the places of dy that repeat it, in their order.

namespace plimsoll::cuda {
namespace {

struct DevicePadGrad {
  PadMode mode;
  int rank;
  Divider inner_sizes[max_rank];
  int64_t inner[max_rank], padded[max_rank], before[max_rank], strides[max_rank];
};

// The largest multiple of `step` not above a.
__device__ int64_t multiple_below(int64_t a, int64_t step) {
  return (a >= 0 ? a / step : -((step - 1 - a) / step)) * step;
}

// The places along one dimension that repeat an element: one or two arithmetic sequences.
struct Repeats {
  int64_t first[2] = {0, 0}, count[2] = {0, 0}, step = 1;

  __device__ int64_t total() const { return count[0] + count[1]; }
  __device__ int64_t operator[](int64_t k) const {
    return k < count[0] ? first[0] + k * step : first[1] + (k - count[0]) * step;
  }
  // All of [0, size) that differ from `place` by a multiple of the step.
  __device__ void add_sequence(int slot, int64_t place, int64_t size) {
    first[slot] = place - multiple_below(place, step);
    count[slot] = first[slot] < size ? (size - 1 - first[slot]) / step + 1 : 0;
  }
};

__device__ Repeats repeats_of(PadMode mode, int64_t element, int64_t length, int64_t before, int64_t padded) {
  Repeats repeats;
  if (mode == PadMode::Edge || length == 1) {
    const int64_t first = element == 0 ? 0 : before + element;
    const int64_t end = element == length - 1 ? padded : before + element + 1;
    repeats.first[0] = first;
    repeats.count[0] = end - first;
    return repeats;
  }
  repeats.step = mode == PadMode::Wrap ? length : 2 * (length - 1);
  repeats.add_sequence(0, before + element, padded);
  if (mode == PadMode::Reflect && element != 0 && element != length - 1)
    repeats.add_sequence(1, before - element, padded);
  return repeats;
}

__global__ void pad_grad_kernel(const __grid_constant__ DevicePadGrad shape, int64_t n, Scalar type, void* dx,
                                const void* dy) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  Repeats repeats[max_rank];
  int64_t rest = i, places = 1;
  for (int d = shape.rank - 1; d >= 0; --d) {
    int64_t element = rest;
    rest = shape.inner_sizes[d].divide(element);
    repeats[d] = repeats_of(shape.mode, element, shape.inner[d], shape.before[d], shape.padded[d]);
    places *= repeats[d].total();
  }
  double sum = 0;
  for (int64_t place = 0; place < places; ++place) {
    int64_t left = place, at = 0;
    for (int d = shape.rank - 1; d >= 0; --d) {
      at += repeats[d][left % repeats[d].total()] * shape.strides[d];
      left /= repeats[d].total();
    }
    sum += load_any<double>({dy, type}, at);
  }
  store_any(dx, type, i, sum);
}

}  // namespace

cudaError_t pad_grad(const Pad& pad, Scalar type, void* dx, const void* dy, cudaStream_t stream) {
  DevicePadGrad shape{};
  shape.mode = pad.mode;
  shape.rank = pad.rank;
  int64_t n = 1, stride = 1;
  for (int d = 0; d < pad.rank; ++d) n *= pad.inner[d];
  if (n == 0) return cudaSuccess;
  for (int d = pad.rank - 1; d >= 0; --d) {
    shape.inner_sizes[d] = Divider(pad.inner[d]);
    shape.inner[d] = pad.inner[d];
    shape.padded[d] = pad.padded[d];
    shape.before[d] = pad.before[d];
    shape.strides[d] = stride;
    stride *= pad.padded[d];
  }
  pad_grad_kernel<<<blocks_for(n), block_threads, 0, stream>>>(shape, n, type, dx, dy);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
