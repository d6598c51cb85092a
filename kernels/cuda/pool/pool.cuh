#pragma once

// Windows on the device. Both orders of dimensions are [planes, in..., lanes]: channels last have their
// channels as lanes, channels first have one lane and more planes. A thread takes an access, n neighbouring
// lanes of one place; indices are 32 bits wide and divisions multiplications.

#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/pool/pool.h"

namespace plimsoll::cuda {

// One spatial dimension.
struct PoolAxis {
  int32_t in, out, kernel, stride, pad_begin, pad_end, dilation;
  Divider32 in_size, out_size, by_stride, by_dilation;

  PoolAxis(const PoolShape& shape, int d)
      : in(shape.in[d]),
        out(shape.out[d]),
        kernel(shape.kernel[d]),
        stride(shape.strides[d]),
        pad_begin(shape.pads_begin[d]),
        pad_end(shape.pads_end[d]),
        dilation(shape.dilations[d]),
        in_size(in),
        out_size(out),
        by_stride(stride),
        by_dilation(dilation) {}
};

enum class PoolSide : uint8_t { In, Out };

struct PoolPlanes {
  PoolAxis axes[3];
  int64_t planes;
  int32_t lanes;
  Divider32 accesses;  // of n lanes each

  PoolPlanes(const PoolShape& shape, int n)
      : axes{{shape, 0}, {shape, 1}, {shape, 2}},
        planes(shape.channels_last ? shape.batch : shape.batch * shape.channels),
        lanes(static_cast<int32_t>(shape.channels_last ? shape.channels : 1)),
        accesses(lanes / n) {}

  __device__ int32_t size(PoolSide side, int d) const { return side == PoolSide::In ? axes[d].in : axes[d].out; }
  // The first element of (plane, a, b, c).
  __device__ int32_t element(PoolSide side, int32_t plane, int32_t a, int32_t b, int32_t c) const {
    return (((plane * size(side, 0) + a) * size(side, 1) + b) * size(side, 2) + c) * lanes;
  }
};

// The access of a number in the order of memory.
struct PoolPlace {
  int32_t plane, a, b, c, lane;

  __device__ PoolPlace(const PoolPlanes& pool, PoolSide side, int n, int32_t number) {
    auto divide = [&](int d) {
      const PoolAxis& axis = pool.axes[d];
      int32_t rest = number;
      number = (side == PoolSide::In ? axis.in_size : axis.out_size).divide(rest);
      return rest;
    };
    int32_t access = number;
    number = pool.accesses.divide(access);
    lane = access * n;
    c = divide(2), b = divide(1), a = divide(0);
    plane = number;
  }
};

// Kernel elements [first, end) through which the window at a position meets the input: number t meets
// input index start + t * dilation.
struct Taps {
  int32_t start, first, end, end_padded;  // with the padding: [0, end_padded)

  __device__ Taps(const PoolAxis& axis, int32_t position) : start(position * axis.stride - axis.pad_begin) {
    auto before = [&](int32_t limit) {
      const int32_t count = limit > start ? axis.by_dilation.quotient_up(limit - start) : 0;
      return count < axis.kernel ? count : axis.kernel;
    };
    first = before(0), end = before(axis.in), end_padded = before(axis.in + axis.pad_end);
  }
};

// Calls visit(Vector of n lanes, number of the kernel element) for what the window at place meets, in kernel
// order.
template <int n, typename T, typename Visit>
__device__ void for_window(const PoolPlanes& pool, const PoolPlace& place, const T* x, Visit visit) {
  constexpr int in_flight = 3;
  const PoolAxis &a = pool.axes[0], &b = pool.axes[1], &c = pool.axes[2];
  const Taps at_a(a, place.a), at_b(b, place.b), at_c(c, place.c);
  for (int32_t i = at_a.first; i < at_a.end; ++i) {
    for (int32_t j = at_b.first; j < at_b.end; ++j) {
      const int32_t row = (i * b.kernel + j) * c.kernel;
      const T* from = x +
                      pool.element(PoolSide::In, place.plane, at_a.start + i * a.dilation, at_b.start + j * b.dilation,
                                   at_c.start + at_c.first * c.dilation) +
                      place.lane;
      const int32_t step = c.dilation * pool.lanes;
      for (int32_t k = at_c.first; k < at_c.end; k += in_flight, from += int64_t{in_flight} * step) {
        Vector<T, n> values[in_flight];
#pragma unroll
        for (int f = 0; f < in_flight; ++f)
          if (k + f < at_c.end) values[f] = load_vector<n>(from + int64_t{f} * step);
#pragma unroll
        for (int f = 0; f < in_flight; ++f)
          if (k + f < at_c.end) visit(values[f], row + k + f);
      }
    }
  }
}

// Positions [first, last] along an axis, some of whose windows cover input index i.
struct Positions {
  int32_t at, first, last;

  __device__ Positions(const PoolAxis& axis, int32_t i) : at(i + axis.pad_begin) {
    const int32_t reach = axis.dilation * (axis.kernel - 1), newest = axis.by_stride.quotient(at);
    first = at > reach ? axis.by_stride.quotient_up(at - reach) : 0;
    last = newest < axis.out ? newest : axis.out - 1;
  }
  // The kernel element through which the window at a position meets i, -1 where it passes over it.
  __device__ int32_t tap(const PoolAxis& axis, int32_t position) const {
    int32_t distance = at - position * axis.stride;
    if (axis.dilation == 1) return distance;
    const int32_t tap = axis.by_dilation.divide(distance);
    return distance == 0 ? tap : -1;
  }
};

// Calls visit(a, b, positions along c, number of the first kernel element of the row through which the
// windows meet the place) for the rows of windows that cover a place of the input, in their order.
template <typename Visit>
__device__ void for_window_rows_over(const PoolPlanes& pool, const PoolPlace& place, Visit visit) {
  const PoolAxis &a = pool.axes[0], &b = pool.axes[1], &c = pool.axes[2];
  const Positions over_a(a, place.a), over_b(b, place.b), over_c(c, place.c);
  for (int32_t i = over_a.first; i <= over_a.last; ++i) {
    const int32_t tap_a = over_a.tap(a, i);
    if (tap_a < 0) continue;
    for (int32_t j = over_b.first; j <= over_b.last; ++j) {
      const int32_t tap_b = over_b.tap(b, j);
      if (tap_b >= 0) visit(i, j, over_c, (tap_a * b.kernel + tap_b) * c.kernel);
    }
  }
}

// Whether windows are squares of that side and stride on images with channels last.
inline bool has_windows(const PoolShape& shape, int32_t kernel, int32_t stride) {
  if (shape.in[0] != 1 || shape.kernel[0] != 1 || shape.out[0] != 1 || !shape.channels_last) return false;
  for (int d : {1, 2})
    if (shape.kernel[d] != kernel || shape.strides[d] != stride || shape.dilations[d] != 1) return false;
  return shape.pads_begin[0] == 0;
}

// Squares of places of an image, and where they lie.
struct PoolSquares {
  PoolPlanes pool;
  Divider32 rows, columns;  // of squares
  int32_t count;            // of accesses

  PoolSquares(const PoolShape& shape, int n, int32_t row_count, int32_t column_count)
      : pool(shape, n),
        rows(row_count),
        columns(column_count),
        count(static_cast<int32_t>(pool.planes * row_count * column_count * (pool.lanes / n))) {}
};

struct PoolSquare {
  int32_t plane, row, column, lane;

  __device__ PoolSquare(const PoolSquares& squares, int n, int32_t number) {
    int32_t access = number;
    number = squares.pool.accesses.divide(access);
    lane = access * n;
    column = number;
    number = squares.columns.divide(column);
    row = number;
    plane = squares.rows.divide(row);
  }
};

// Squares of gradients are `stride` x `stride` places of x: place o of square s along an axis is s * stride + o -
// padding. Windows s - reach to s cover the square, the first of them from its tap o + reach * stride on.
inline int32_t squares_along(const PoolAxis& axis) { return (axis.in + axis.pad_begin - 1) / axis.stride + 1; }
inline PoolSquares gradient_squares(const PoolShape& shape, int n) {
  return PoolSquares(shape, n, squares_along({shape, 1}), squares_along({shape, 2}));
}

// Calls visit with the most lanes of one access, at most `most`, as a constant.
template <int most, typename Visit>
void with_widest_access(const PoolShape& shape, Visit visit) {
  if constexpr (most > 1)
    if (!shape.channels_last || shape.channels % most != 0) return with_widest_access<most / 2>(shape, visit);
  visit(std::integral_constant<int, most>());
}

// Calls launch(null pointer of the element's type, integral constant of the lanes an access has, accesses,
// blocks) for the accesses of x or y, unless there are none.
template <typename Launch>
cudaError_t over_accesses(const PoolShape& shape, PoolSide side, Scalar type, Launch launch) {
  int64_t elements = shape.batch * shape.channels;
  for (int d = 0; d < 3; ++d) elements *= side == PoolSide::In ? shape.in[d] : shape.out[d];
  if (elements == 0) return cudaSuccess;
  return with_f32_math(type, [&](auto* element) {
    with_widest_access<vector_length<std::remove_pointer_t<decltype(element)>>>(
        shape, [&](auto n) { launch(element, n, static_cast<int32_t>(elements / n()), blocks_for(elements / n())); });
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
