#pragma once

// Resize and its gradient share the tables of taps, one per axis, and lines. A line is the last axis with what
// stands inside of it, which is contiguous on both sides.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/resize/resize.h"

namespace plimsoll::cuda {

inline constexpr int resize_threads = 256, resize_warps = resize_threads / warp_threads;

// Results of forward read by `taps`; sources of the gradient by `spreads` and `starts`: rows [starts[i], starts[i + 1])
// of an axis' spreads have `first` = i.
struct TapTables {
  AxisTaps* taps[max_resized_axes];
  Spread* spreads[max_resized_axes];
  int32_t* starts[max_resized_axes];

  TapTables(const ResizeShape& shape, void* workspace);
};

[[nodiscard]] cudaError_t fill_taps(const ResizeShape& shape, const TapTables& tables, cudaStream_t stream);
[[nodiscard]] cudaError_t fill_spreads(const ResizeShape& shape, const TapTables& tables, cudaStream_t stream);

// 64-bit division is several times dearer, and numbers are seldom that large.
__device__ inline int64_t quotient(int64_t dividend, int64_t divisor) {
  constexpr int64_t past_32_bits = int64_t{1} << 32;
  if (divisor == 1) return dividend;
  if (dividend >= past_32_bits || divisor >= past_32_bits) return dividend / divisor;
  return static_cast<uint32_t>(dividend) / static_cast<uint32_t>(divisor);
}

// The innermost index of a number that counts through dimensions, `size` being the innermost's; the number becomes that
// of the others.
__device__ inline int64_t take_index(int64_t& number, int64_t size) {
  const int64_t others = quotient(number, size), index = number - others * size;
  number = others;
  return index;
}

// Where word i lies in shared memory that a warp reads at even strides: the gaps lead to different banks.
__host__ __device__ constexpr int spaced(int i) { return i + i / 32; }

inline int64_t elements_around(const ResizeShape& shape) {
  return shape.outer * shape.inner[0] * shape.inner[1] * shape.inner[2];
}

// Calls body(integral constant of the taps an axis has).
template <typename Body>
void with_taps(Interpolation interpolation, Body body) {
  switch (interpolation) {
    case Interpolation::Nearest: body(std::integral_constant<int, 1>()); break;
    case Interpolation::Linear: body(std::integral_constant<int, 2>()); break;
    case Interpolation::Cubic: body(std::integral_constant<int, 4>()); break;
  }
}

// The sizes between the axes; they are the whole tensor where each axis has one element before and after.
inline bool is_copy(const ResizeShape& shape) {
  for (const ResizedAxis& axis : shape.axes)
    if (axis.in != 1 || axis.out != 1) return false;
  return true;
}
template <typename T>
cudaError_t copy_elements(const ResizeShape& shape, T* to, const T* from, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, static_cast<size_t>(elements_around(shape)) * sizeof(T), cudaMemcpyDeviceToDevice,
                         stream);
}

}  // namespace plimsoll::cuda
