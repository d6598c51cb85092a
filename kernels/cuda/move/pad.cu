#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/wide_writes.cuh"
#include "kernels/cuda/move/move.h"

// Serves pad and slice_grad. The result is written once, x read once or from the cache. Padding in one pass: every unit
// of the padded tensor looks up the one it repeats. Where units are smaller than 16 bytes, a thread writes 16 bytes of
// them.

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

// ---- Sixteen bytes a thread ----

// Of at least two dimensions, and fewer than 2^31 units.
struct WidePad {
  PadMode mode;
  int rank;
  Divider32 padded[max_rank];
  int sizes[max_rank], inner[max_rank], before[max_rank], strides[max_rank];
};

// Goes along the rows of the padded tensor and finds what each place repeats. From row to row of a plane nothing is
// divided: the threads of a warp come to the ends of their rows at different places.
template <bool is_constant>
struct PadReader {
  const WidePad& shape;
  int column, row, upper;  // upper: where the plane begins in x
  int at;                  // where the row begins in x
  bool in_plane, in_row;

  __device__ PadReader(const WidePad& shape, int first) : shape(shape) { find(first); }

  __device__ int source(int index, int d) const {
    const int inside = index - shape.before[d];
    if (is_constant) return static_cast<unsigned>(inside) < static_cast<unsigned>(shape.inner[d]) ? inside : -1;
    return static_cast<int>(source_index(inside, shape.inner[d], shape.mode));
  }
  __device__ void find(int place) {
    column = place;
    row = shape.padded[shape.rank - 1].divide(column);
    int rest = shape.padded[shape.rank - 2].divide(row);
    upper = 0;
    in_plane = true;
    for (int d = shape.rank - 3; d >= 0; --d) {
      int index = rest;
      rest = shape.padded[d].divide(index);
      const int from = source(index, d);
      in_plane &= from >= 0;
      upper += from * shape.strides[d];
    }
    begin_row();
  }
  __device__ void begin_row() {
    const int from = source(row, shape.rank - 2);
    in_row = in_plane && from >= 0;
    at = upper + from * shape.strides[shape.rank - 2];
  }
  // The place in x that place `i` repeats, -1 for none; then goes on.
  __device__ int next(int i) {
    if (column == shape.sizes[shape.rank - 1]) {
      column = 0;
      if (++row == shape.sizes[shape.rank - 2])
        find(i);
      else
        begin_row();
    }
    const int from = source(column++, shape.rank - 1);
    return in_row && from >= 0 ? at + from : -1;
  }
};

template <typename Unit, bool is_constant>
__global__ void __launch_bounds__(block_threads) pad_wide_kernel(const __grid_constant__ WidePad shape, int n, Unit* y,
                                                                 const Unit* x, const void* value, int element_bytes) {
  const int64_t first = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * units_per_write<Unit>;
  if (first >= n) return;
  const Unit padding = repeated<Unit>(value, element_bytes);
  PadReader<is_constant> reader(shape, static_cast<int>(first));
  int place = static_cast<int>(first);
  write_wide(y, first, n, [&] {
    const int from = reader.next(place++);
    return from >= 0 ? x[from] : padding;
  });
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

// A dimension of 1 stands before a single one.
WidePad wide(const Pad& shape) {
  WidePad out{};
  out.mode = shape.mode;
  const int added = shape.rank < 2 ? 2 - shape.rank : 0;
  out.rank = shape.rank + added;
  int stride = 1;
  for (int d = out.rank - 1; d >= 0; --d) {
    const bool is_added = d < added;
    out.sizes[d] = is_added ? 1 : static_cast<int>(shape.padded[d - added]);
    out.inner[d] = is_added ? 1 : static_cast<int>(shape.inner[d - added]);
    out.before[d] = is_added ? 0 : static_cast<int>(shape.before[d - added]);
    out.padded[d] = Divider32(out.sizes[d]);
    out.strides[d] = stride;
    stride *= out.inner[d];
  }
  return out;
}

constexpr int64_t max_wide_units = int64_t{1} << 30;

bool fits_wide(const Pad& shape, int64_t n) {
  int64_t inner = 1;
  for (int d = 0; d < shape.rank; ++d) inner *= shape.inner[d];
  return n <= max_wide_units && inner <= max_wide_units;
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
  const bool is_wide = takes_wide_writes(y) && fits_wide(shape, n), is_constant = shape.mode == PadMode::Constant;
  return with_unit_bytes(unit, [&]<typename Unit>(Unit*) {
    Unit* const to = static_cast<Unit*>(y);
    const Unit* const from = static_cast<const Unit*>(x);
    constexpr int most = units_per_write<Unit>;
    const auto units = static_cast<int>(n);
    if (most == 1 || !is_wide)
      pad_kernel<<<blocks_for(n), block_threads, 0, stream>>>(on_device(shape), n, to, from, value, element_bytes);
    else if (is_constant)
      pad_wide_kernel<Unit, true><<<blocks_for(n, block_threads * most), block_threads, 0, stream>>>(
          wide(shape), units, to, from, value, element_bytes);
    else
      pad_wide_kernel<Unit, false><<<blocks_for(n, block_threads * most), block_threads, 0, stream>>>(
          wide(shape), units, to, from, value, element_bytes);
  });
}

}  // namespace plimsoll::cuda
