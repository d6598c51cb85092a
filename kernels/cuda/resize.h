#pragma once

// Resampling as ONNX Resize defines it, without regions of interest: along each axis a result element is a weighted sum
// of up to four elements of x, its taps. The gradient gathers: an element of dx adds what it gave, in a fixed order.
// `taps` is workspace, resize_workspace_bytes of it.

#include "kernels/cuda/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

inline constexpr int max_resized_axes = 3;

enum class Interpolation : uint8_t { Nearest, Linear, Cubic };
enum class NearestRounding : uint8_t { PreferFloor, PreferCeil, Floor, Ceil };

// Result element k lies at offset + (k + shift) * factor / divisor - back of x's axis; divisor > 0.
struct ResizedAxis {
  int64_t in = 1, out = 1;
  double offset = 0, shift = 0, factor = 1, divisor = 1, back = 0;
};

// x [outer, axes[0].in, inner[0], axes[1].in, inner[1], axes[2].in, inner[2]]; unused axes have one element.
struct ResizeShape {
  int64_t outer = 1;
  ResizedAxis axes[max_resized_axes];
  int64_t inner[max_resized_axes] = {1, 1, 1};
  int used = 0;  // axes that are resampled, the first ones
  Interpolation interpolation = Interpolation::Nearest;
  NearestRounding rounding = NearestRounding::PreferFloor;
  double cubic_a = -0.75;
  bool exclude_outside = false;  // taps outside x leave their weight to the others; else they read the edge
};

[[nodiscard]] cudaError_t resize(const ResizeShape& shape, Scalar type, void* y, const void* x, void* taps,
                                 cudaStream_t stream);
[[nodiscard]] cudaError_t resize_grad(const ResizeShape& shape, Scalar type, void* dx, const void* dy, void* taps,
                                      cudaStream_t stream);

}  // namespace plimsoll::cuda
