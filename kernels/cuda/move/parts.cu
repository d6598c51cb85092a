#include "kernels/cuda/move/parts.h"

#include "kernels/cuda/common/nest.cuh"

// Serves split and concat. A network that runs step by step has many of few elements, each of which would be launches
// as long as the copies themselves, so that one launch moves all parts.

namespace plimsoll::cuda {
namespace {

// In units of up to 16 bytes.
struct DevicePart {
  void* data;
  Divider columns;
  int64_t first, count;  // where it begins in a row of the whole; its units
  uint32_t end_block;    // behind its last block
};

struct DeviceParts {
  void* whole;
  int64_t pitch;
  int count = 0;
  DevicePart parts[max_parts];
};

template <typename Unit, bool joins>
__global__ void __launch_bounds__(block_threads) copy_parts_kernel(const __grid_constant__ DeviceParts parts) {
  int number = 0;
  for (int above = parts.count - 1; number < above;) {
    const int middle = (number + above) / 2;
    if (blockIdx.x < parts.parts[middle].end_block)
      above = middle;
    else
      number = middle + 1;
  }
  const DevicePart& part = parts.parts[number];
  const uint32_t first_block = number == 0 ? 0 : parts.parts[number - 1].end_block;
  const int64_t i = int64_t{blockIdx.x - first_block} * block_threads + threadIdx.x;
  if (i >= part.count) return;
  int64_t column = i;
  const int64_t row = part.columns.divide(column);
  Unit* const in_whole = static_cast<Unit*>(parts.whole) + row * parts.pitch + part.first + column;
  Unit* const in_part = static_cast<Unit*>(part.data) + i;
  if (joins)
    *in_whole = *in_part;
  else
    *in_part = *in_whole;
}

int unit_of(const Parts& parts, int element_bytes) {
  auto in_bytes = [&](int64_t elements) { return static_cast<uintptr_t>(elements * element_bytes); };
  uintptr_t all = reinterpret_cast<uintptr_t>(parts.whole) | in_bytes(parts.pitch);
  for (int i = 0; i < parts.count; ++i) {
    const Part& part = parts.parts[i];
    all |= reinterpret_cast<uintptr_t>(part.data) | in_bytes(part.first) | in_bytes(part.columns);
  }
  int unit = 16;
  while (all % static_cast<uintptr_t>(unit) != 0) unit /= 2;
  return unit;
}

template <bool joins>
cudaError_t copy_parts(const Parts& parts, int element_bytes, cudaStream_t stream) {
  const int unit = unit_of(parts, element_bytes);
  DeviceParts device;
  device.whole = parts.whole;
  device.pitch = parts.pitch * element_bytes / unit;
  uint32_t blocks = 0;
  for (int i = 0; i < parts.count; ++i) {
    const Part& part = parts.parts[i];
    const int64_t columns = part.columns * element_bytes / unit, count = parts.rows * columns;
    if (count == 0) continue;
    blocks += blocks_for(count);
    device.parts[device.count++] = {part.data, Divider(columns), part.first * element_bytes / unit, count, blocks};
  }
  if (blocks == 0) return cudaSuccess;
  return with_unit_bytes(unit, [&]<typename Unit>(Unit*) {
    copy_parts_kernel<Unit, joins><<<blocks, block_threads, 0, stream>>>(device);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t split_parts(const Parts& parts, int element_bytes, cudaStream_t stream) {
  return copy_parts<false>(parts, element_bytes, stream);
}

cudaError_t join_parts(const Parts& parts, int element_bytes, cudaStream_t stream) {
  return copy_parts<true>(parts, element_bytes, stream);
}

}  // namespace plimsoll::cuda
