#pragma once

// Resampling as ONNX Resize defines it, without regions of interest: along each axis a result element is a weighted sum
// of up to four elements of x, its taps. The gradient gathers: an element of dx adds what it gave, in a fixed order.
// `workspace` is resize_workspace_bytes.

#include "kernels/cuda/resize/resize_workspace.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

enum class Interpolation : uint8_t { Nearest, Linear, Cubic };
enum class NearestRounding : uint8_t { PreferFloor, PreferCeil, Floor, Ceil };

// Result element k lies at offset + (k + shift) * factor / divisor - back of x's axis; divisor > 0.
struct ResizedAxis {
  int64_t in = 1, out = 1;
  double offset = 0, shift = 0, factor = 1, divisor = 1, back = 0;
};

// x [outer, axes[0].in, inner[0], axes[1].in, inner[1], axes[2].in, inner[2]]. The resampled axes are the last of the
// three, the others have one element. axes[2] and inner[2] together, a line, have fewer than 2^31 elements.
struct ResizeShape {
  int64_t outer = 1;
  ResizedAxis axes[max_resized_axes];
  int64_t inner[max_resized_axes] = {1, 1, 1};
  Interpolation interpolation = Interpolation::Nearest;
  NearestRounding rounding = NearestRounding::PreferFloor;
  double cubic_a = -0.75;
  bool exclude_outside = false;  // taps outside x leave their weight to the others; else they read the edge
};

[[nodiscard]] cudaError_t resize(const ResizeShape& shape, Scalar type, void* y, const void* x, void* workspace,
                                 cudaStream_t stream);
[[nodiscard]] cudaError_t resize_grad(const ResizeShape& shape, Scalar type, void* dx, const void* dy, void* workspace,
                                      cudaStream_t stream);
// The same where elements lie behind the last axis, inner[2] of them, and between the axes none.
[[nodiscard]] cudaError_t resize_channels(const ResizeShape& shape, Scalar type, void* y, const void* x,
                                          void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t resize_grad_channels(const ResizeShape& shape, Scalar type, void* dx, const void* dy,
                                               void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
