#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/move/move.h"

// Serves pad and slice_grad. The result is written once, x read once or from the cache. Padding in one pass: every unit
// of the padded tensor looks up the one it repeats.

namespace plimsoll::cuda {
namespace {

struct DevicePad {
  PadMode mode;
  int rank;
  Divider padded[max_rank];
  int64_t inner[max_rank], before[max_rank], strides[max_rank];
};

__device__ int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

// Where the element at `i`, which may lie outside [0, length), comes from; -1 for the constant.
__device__ int64_t source_index(int64_t i, int64_t length, PadMode mode) {
  if (i >= 0 && i < length) return i;
  if (mode == PadMode::Constant) return -1;
  if (mode == PadMode::Edge) return i < 0 ? 0 : length - 1;
  if (mode == PadMode::Wrap) return modulo(i, length);
  if (length == 1) return 0;
  const int64_t from_end = length - 1 - modulo(i, 2 * (length - 1));
  return length - 1 - (from_end < 0 ? -from_end : from_end);
}

// A unit of copies of the element at `value`.
template <typename Unit>
__device__ Unit repeated(const void* value, int element_bytes) {
  uint64_t bits = 0;
  if (value && element_bytes == 1) bits = *static_cast<const uint8_t*>(value) * 0x0101010101010101u;
  if (value && element_bytes == 2) bits = *static_cast<const uint16_t*>(value) * 0x0001000100010001u;
  if (value && element_bytes == 4) bits = *static_cast<const uint32_t*>(value) * 0x0000000100000001u;
  if (value && element_bytes == 8) bits = *static_cast<const uint64_t*>(value);
  if constexpr (sizeof(Unit) == 16)
    return {bits, bits};
  else
    return static_cast<Unit>(bits);
}

template <typename Unit>
__global__ void __launch_bounds__(block_threads) pad_kernel(const __grid_constant__ DevicePad shape, int64_t n, Unit* y,
                                                            const Unit* x, const void* value, int element_bytes) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t rest = i, at = 0;
  bool inside = true;
  for (int d = shape.rank - 1; d >= 0; --d) {
    int64_t index = rest;
    rest = shape.padded[d].divide(index);
    const int64_t source = source_index(index - shape.before[d], shape.inner[d], shape.mode);
    inside &= source >= 0;
    at += source * shape.strides[d];
  }
  y[i] = inside ? x[at] : repeated<Unit>(value, element_bytes);
}

// Dimensions that are not padded join the one before; when that one is padded, only a constant stays one.
Pad collapse(const Pad& full) {
  Pad out;
  out.mode = full.mode;
  for (int d = 0; d < full.rank; ++d) {
    const bool whole = full.before[d] == 0 && full.padded[d] == full.inner[d];
    const int last = out.rank - 1;
    const bool joins = out.rank > 0 && whole && (full.mode == PadMode::Constant || out.padded[last] == out.inner[last]);
    if (joins) {
      out.padded[last] *= full.padded[d];
      out.inner[last] *= full.inner[d];
      out.before[last] *= full.inner[d];
    } else {
      out.padded[out.rank] = full.padded[d];
      out.inner[out.rank] = full.inner[d];
      out.before[out.rank] = full.before[d];
      ++out.rank;
    }
  }
  return out;
}

// The widest unit that the last dimension's runs are whole numbers of.
int unit_bytes(const Pad& shape, int element_bytes) {
  if (shape.mode != PadMode::Constant || shape.rank == 0) return element_bytes;
  const int last = shape.rank - 1;
  int unit = 16;
  while (unit > element_bytes &&
         (shape.padded[last] * element_bytes % unit || shape.inner[last] * element_bytes % unit ||
          shape.before[last] * element_bytes % unit))
    unit /= 2;
  return unit;
}

DevicePad on_device(const Pad& shape) {
  DevicePad out{};
  out.mode = shape.mode;
  out.rank = shape.rank;
  int64_t stride = 1;
  for (int d = shape.rank - 1; d >= 0; --d) {
    out.padded[d] = Divider(shape.padded[d]);
    out.inner[d] = shape.inner[d];
    out.before[d] = shape.before[d];
    out.strides[d] = stride;
    stride *= shape.inner[d];
  }
  return out;
}

}  // namespace

cudaError_t pad(const Pad& full, void* y, const void* x, const void* value, int element_bytes, cudaStream_t stream) {
  Pad shape = collapse(full);
  const int unit = unit_bytes(shape, element_bytes), elements = unit / element_bytes;
  int64_t n = 1;
  if (shape.rank > 0) {
    shape.padded[shape.rank - 1] /= elements;
    shape.inner[shape.rank - 1] /= elements;
    shape.before[shape.rank - 1] /= elements;
  }
  for (int d = 0; d < shape.rank; ++d) n *= shape.padded[d];
  if (n == 0) return cudaSuccess;
  return with_unit_bytes(unit, [&]<typename Unit>(Unit*) {
    pad_kernel<<<blocks_for(n), block_threads, 0, stream>>>(on_device(shape), n, static_cast<Unit*>(y),
                                                            static_cast<const Unit*>(x), value, element_bytes);
  });
}

}  // namespace plimsoll::cuda
