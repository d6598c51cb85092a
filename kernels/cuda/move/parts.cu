#include "kernels/cuda/move/parts.h"

#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/wide_writes.cuh"

#include <algorithm>

// Serves split and concat. A network that runs step by step has many of few elements, each of which would be launches
// as long as the copies themselves, so that one launch moves all parts. Neighbours in a row of the whole are moved at
// nearly the same time: where a part ends within a sector of 32 bytes, the sector goes to memory once.

namespace plimsoll::cuda {
namespace {

// In units of up to 16 bytes.
struct DevicePart {
  void* data;
  Divider columns;
  int64_t first, width;  // where it begins in a row of the whole; its columns
  uint32_t end_block;    // of split: behind its last block of a band
};

struct DeviceParts {
  void* whole;
  int64_t rows, pitch;
  Divider row, band_blocks;  // columns of the whole; blocks of a band of rows
  int64_t band_rows;
  int count = 0;
  DevicePart parts[max_parts];
};

// The first part that is not before what is looked for; the last is not asked.
template <typename IsBefore>
__device__ int find_part(int count, IsBefore is_before) {
  int number = 0;
  for (int above = count - 1; number < above;) {
    const int middle = (number + above) / 2;
    if (is_before(middle))
      number = middle + 1;
    else
      above = middle;
  }
  return number;
}

// What a block has of a band of rows, where one part comes after the other.
struct PartOfBlock {
  int number;               // of the part
  int64_t block;            // of its blocks in the band
  int64_t first_row, rows;  // of the band

  __device__ explicit PartOfBlock(const DeviceParts& parts) : block(blockIdx.x) {
    const int64_t band = parts.band_blocks.divide(block);
    number = find_part(parts.count, [&](int i) { return block >= parts.parts[i].end_block; });
    if (number > 0) block -= parts.parts[number - 1].end_block;
    first_row = band * parts.band_rows;
    rows = min(parts.band_rows, parts.rows - first_row);
  }
};

// Rows of the whole are split band by band, each by blocks of one part after the other, so that what they read of a
// sector is still in the second-level cache. A thread writes 16 bytes, or one unit, of its part.
template <typename Unit, int count>
__global__ void __launch_bounds__(block_threads) split_kernel(const __grid_constant__ DeviceParts parts) {
  const PartOfBlock here(parts);
  const DevicePart& part = parts.parts[here.number];
  const int64_t first_row = here.first_row, n = here.rows * part.width;
  const int64_t first = (here.block * block_threads + threadIdx.x) * count;
  if (first >= n) return;
  int64_t column = first;
  const int64_t row = part.columns.divide(column);
  const Unit* from = static_cast<const Unit*>(parts.whole) + (first_row + row) * parts.pitch + part.first + column;
  Unit* const to = static_cast<Unit*>(part.data) + first_row * part.width;
  const auto next = [&] {
    if (column == part.width) {
      column = 0;
      from += parts.pitch - part.width;
    }
    ++column;
    return *from++;
  };
  if constexpr (count == 1)
    to[first] = next();
  else
    write_wide(to, first, n, next);
}

// A thread writes 16 bytes, or one unit, of the whole, of which the parts are all columns in their order.
template <typename Unit, int count>
__global__ void __launch_bounds__(block_threads) join_kernel(const __grid_constant__ DeviceParts parts) {
  const int64_t first = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * count, n = parts.rows * parts.pitch;
  if (first >= n) return;
  int64_t column = first;
  int64_t row = parts.row.divide(column);
  int number = 0;
  int64_t end = 0;
  const Unit* from = nullptr;
  const auto find = [&] {
    number = find_part(parts.count, [&](int i) { return column >= parts.parts[i].first + parts.parts[i].width; });
    const DevicePart& part = parts.parts[number];
    end = part.first + part.width;
    from = static_cast<const Unit*>(part.data) + row * part.width + (column - part.first);
  };
  find();
  const auto next = [&] {
    if (column == end) {
      if (end == parts.pitch) {
        column = 0;
        ++row;
      }
      find();
    }
    ++column;
    return *from++;
  };
  Unit* const to = static_cast<Unit*>(parts.whole);
  if constexpr (count == 1)
    to[first] = next();
  else
    write_wide(to, first, n, next);
}

// Parts that are some of the columns: a thread writes a unit of one of them.
template <typename Unit>
__global__ void __launch_bounds__(block_threads) join_some_kernel(const __grid_constant__ DeviceParts parts) {
  const PartOfBlock here(parts);
  const DevicePart& part = parts.parts[here.number];
  const int64_t first_row = here.first_row, n = here.rows * part.width;
  const int64_t i = here.block * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t column = i;
  const int64_t row = first_row + part.columns.divide(column);
  static_cast<Unit*>(parts.whole)[row * parts.pitch + part.first + column] =
      static_cast<const Unit*>(part.data)[first_row * part.width + i];
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

constexpr int64_t band_bytes = int64_t{2} << 20;  // of the whole, a small share of the second-level cache

// Bands have whole writes of every part.
int64_t rows_of_band(const Parts& parts, int element_bytes) {
  constexpr int64_t multiple = sizeof(Bytes16);
  const int64_t rows = band_bytes / std::max<int64_t>(parts.pitch * element_bytes, 1);
  return std::max(multiple, rows / multiple * multiple);
}

// The parts in units, with `count` units a thread. Returns the blocks of all bands.
int64_t in_units(const Parts& parts, int element_bytes, int unit, int count, DeviceParts& device) {
  device.whole = parts.whole;
  device.rows = parts.rows;
  device.pitch = parts.pitch * element_bytes / unit;
  device.row = Divider(device.pitch);
  device.band_rows = std::min(parts.rows, rows_of_band(parts, element_bytes));
  uint32_t blocks = 0;
  for (int i = 0; i < parts.count; ++i) {
    const Part& part = parts.parts[i];
    const int64_t width = part.columns * element_bytes / unit;
    if (width == 0) continue;
    blocks += blocks_for(device.band_rows * width, int64_t{block_threads} * count);
    device.parts[device.count++] = {part.data, Divider(width), part.first * element_bytes / unit, width, blocks};
  }
  device.band_blocks = Divider(std::max<int64_t>(blocks, 1));
  return parts.rows == 0 ? 0 : divide_up(parts.rows, device.band_rows) * blocks;
}

bool are_all_columns(const DeviceParts& parts) {
  int64_t columns = 0;
  for (int i = 0; i < parts.count; ++i) columns += parts.parts[i].width;
  return columns == parts.pitch;
}

}  // namespace

cudaError_t split_parts(const Parts& parts, int element_bytes, cudaStream_t stream) {
  const int unit = unit_of(parts, element_bytes);
  bool is_wide = true;
  for (int i = 0; i < parts.count; ++i) is_wide &= takes_wide_writes(parts.parts[i].data);
  return with_unit_bytes(unit, [&]<typename Unit>(Unit*) {
    constexpr int most = units_per_write<Unit>;
    DeviceParts device;
    const int64_t blocks = in_units(parts, element_bytes, unit, is_wide ? most : 1, device);
    if (blocks == 0) return cudaSuccess;
    if (is_wide)
      split_kernel<Unit, most><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(device);
    else
      split_kernel<Unit, 1><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(device);
    return cudaGetLastError();
  });
}

cudaError_t join_parts(const Parts& parts, int element_bytes, cudaStream_t stream) {
  const int unit = unit_of(parts, element_bytes);
  const bool is_wide = takes_wide_writes(parts.whole);
  return with_unit_bytes(unit, [&]<typename Unit>(Unit*) {
    constexpr int most = units_per_write<Unit>;
    DeviceParts device;
    const int64_t blocks = in_units(parts, element_bytes, unit, 1, device), n = device.rows * device.pitch;
    if (blocks == 0) return cudaSuccess;
    if (!are_all_columns(device))
      join_some_kernel<Unit><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(device);
    else if (is_wide)
      join_kernel<Unit, most><<<blocks_for(n, block_threads * most), block_threads, 0, stream>>>(device);
    else
      join_kernel<Unit, 1><<<blocks_for(n), block_threads, 0, stream>>>(device);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
