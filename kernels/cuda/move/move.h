#pragma once

// Data movement: elements of 1, 2, 4 or 8 bytes go from one strided place to another, bit for bit. Source and
// destination do not overlap.

#include "kernels/scalar.h"
#include "kernels/strides.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// to[...] = from[...] over the nest; tensors of the nest: destination, source; strides in elements. Slices,
// transposes, expansions, splits, concatenations and tiles are all this.
[[nodiscard]] cudaError_t copy_strided(const LoopNest<2>& nest, void* to, const void* from, int element_bytes,
                                       cudaStream_t stream);

[[nodiscard]] cudaError_t copy_bytes(void* to, const void* from, int64_t bytes, cudaStream_t stream);
[[nodiscard]] cudaError_t zero_bytes(void* to, int64_t bytes, cudaStream_t stream);

enum class PadMode : uint8_t { Constant, Reflect, Edge, Wrap };

struct Pad {
  PadMode mode = PadMode::Constant;
  int rank = 0;
  // Sizes of the padded tensor and of the inner one, and how many elements come before the inner one; negative
  // numbers crop.
  int64_t padded[max_rank], inner[max_rank], before[max_rank];
};

// y[padded] repeats elements of x[inner]; where none is repeated stands *value, or 0 when `value` is null.
[[nodiscard]] cudaError_t pad(const Pad& shape, void* y, const void* x, const void* value, int element_bytes,
                              cudaStream_t stream);

// dx[inner] adds up the elements of dy[padded] that repeat it. Any mode but Constant; any float but F8.
[[nodiscard]] cudaError_t pad_grad(const Pad& shape, Scalar type, void* dx, const void* dy, cudaStream_t stream);

}  // namespace plimsoll::cuda
