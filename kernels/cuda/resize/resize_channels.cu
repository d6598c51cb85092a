#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/resize/resize_taps.cuh"

#include <algorithm>

// Serves resize and resize_grad of images whose channels are last: neighbouring threads have neighbouring channels, so
// that every access of a warp is a run of a pixel, or of a few. A block makes a piece of a line of the result. What the
// outer axes weigh is the same for all of it: of the gradient's the block looks it up once.

namespace plimsoll::cuda {
namespace {

constexpr int units_per_thread = 4;  // results forward
constexpr int max_lines = 64;        // of dy that a block looks up at once

// A block's part of a line: its number, and the units of `width` elements from `first` on.
struct Piece {
  int64_t line;
  int32_t first;

  __device__ Piece(int64_t pieces, int units_of_block) {
    line = blockIdx.x;
    first = static_cast<int32_t>(take_index(line, pieces)) * units_of_block;
  }
};

template <typename T, int taps, int width>
__global__ void __launch_bounds__(resize_threads)
    resize_channels_kernel(const __grid_constant__ ResizeShape shape, const __grid_constant__ TapTables tables,
                           Divider32 units_of_pixel, int32_t units, int64_t pieces, T* y, const T* __restrict__ x) {
  Piece piece(pieces, resize_threads * units_per_thread);
  const int64_t result = piece.line * units * width;
  const AxisTaps& b = tables.taps[1][take_index(piece.line, shape.axes[1].out)];
  const AxisTaps& a = tables.taps[0][take_index(piece.line, shape.axes[0].out)];
  const int64_t pixel = shape.inner[2], row = shape.axes[2].in * pixel;
  const T* image = x + piece.line * shape.axes[0].in * shape.axes[1].in * row;
  const int taps_a = shape.axes[0].in == 1 ? 1 : taps, taps_b = shape.axes[1].in == 1 ? 1 : taps;
#pragma unroll
  for (int u = 0; u < units_per_thread; ++u) {
    const int32_t unit = piece.first + u * resize_threads + static_cast<int32_t>(threadIdx.x);
    if (unit >= units) return;
    int32_t channel = unit;
    const AxisTaps c = tables.taps[2][units_of_pixel.divide(channel)];
    float sum[width] = {};
    for (int i = 0; i < taps_a; ++i)
      for (int j = 0; j < taps_b; ++j) {
        const float of_line = a.weight[i] * b.weight[j];
        const T* line = image + (a.index[i] * shape.axes[1].in + b.index[j]) * row + int64_t{channel} * width;
#pragma unroll
        for (int t = 0; t < taps; ++t) {
          const Packed<T, width> read = load_packed<width>(line + c.index[t] * pixel);
#pragma unroll
          for (int e = 0; e < width; ++e) sum[e] += of_line * c.weight[t] * read[e];
        }
      }
    store_packed(y + result + int64_t{unit} * width, pack<T>(sum));
  }
}

// A line of dy that gives to the block's line of dx.
struct GivingLine {
  int64_t start;
  float weight;
};

// The rows of an axis that give to its element `i`.
struct Givers {
  int32_t first, count;

  __device__ Givers(const int32_t* starts, int64_t i, int taps)
      : first(starts[max(i - taps + 1, int64_t{0})]), count(starts[i + 1] - first) {}
};

template <typename T, int taps, int width>
__global__ void __launch_bounds__(resize_threads)
    resize_grad_channels_kernel(const __grid_constant__ ResizeShape shape, const __grid_constant__ TapTables tables,
                                Divider32 units_of_pixel, int32_t units, int64_t pieces, T* dx,
                                const T* __restrict__ dy) {
  __shared__ GivingLine lines[max_lines];
  Piece piece(pieces, resize_threads);
  const int64_t result = piece.line * units * width;
  const int64_t i1 = take_index(piece.line, shape.axes[1].in), i0 = take_index(piece.line, shape.axes[0].in);
  const Givers outer(tables.starts[0], i0, taps), inner(tables.starts[1], i1, taps);
  const int64_t pixel = shape.inner[2], row = shape.axes[2].out * pixel;
  const int32_t unit = piece.first + static_cast<int32_t>(threadIdx.x);
  const bool has_unit = unit < units;
  int32_t channel = has_unit ? unit : 0;
  const int32_t i2 = units_of_pixel.divide(channel);
  const Givers across(tables.starts[2], i2, taps);
  const T* from = dy + int64_t{channel} * width;
  float sum[width] = {};
  const int count = outer.count * inner.count;
  for (int base = 0; base < count; base += max_lines) {
    const int here = min(count - base, max_lines);
    __syncthreads();  // the lines before may still be read
    if (static_cast<int>(threadIdx.x) < here) {
      const int number = base + static_cast<int>(threadIdx.x), a = number / inner.count, b = number - a * inner.count;
      const Spread &of_outer = tables.spreads[0][outer.first + a], &of_inner = tables.spreads[1][inner.first + b];
      lines[threadIdx.x] = {
          ((piece.line * shape.axes[0].out + outer.first + a) * shape.axes[1].out + inner.first + b) * row,
          of_outer.weight[i0 - of_outer.first] * of_inner.weight[i1 - of_inner.first]};
    }
    __syncthreads();
    if (!has_unit) continue;
    for (int k = across.first; k < across.first + across.count; ++k) {
      const Spread& spread = tables.spreads[2][k];
      const float weight = spread.weight[i2 - spread.first];
      const T* column = from + k * pixel;
      float of_column[width] = {};
#pragma unroll 4
      for (int r = 0; r < here; ++r) {
        const Packed<T, width> read = load_packed<width>(column + lines[r].start);
#pragma unroll
        for (int e = 0; e < width; ++e) of_column[e] += lines[r].weight * read[e];
      }
#pragma unroll
      for (int e = 0; e < width; ++e) sum[e] += weight * of_column[e];
    }
  }
  if (has_unit) store_packed(dx + result + int64_t{unit} * width, pack<T>(sum));
}

// With what lies before the first resampled axis in `outer`.
ResizeShape gathered(ResizeShape shape) {
  for (int d = 0; d < max_resized_axes - 1; ++d) {
    if (shape.axes[d].in != 1 || shape.axes[d].out != 1) break;
    shape.outer *= shape.inner[d];
    shape.inner[d] = 1;
  }
  return shape;
}

// Calls body(integral constant of the elements of a unit): the most that divide a pixel.
template <typename T, typename Body>
void with_width(int64_t pixel, Body body) {
  constexpr int vector = vector_length<T>;
  if (pixel % vector == 0) return body(std::integral_constant<int, vector>());
  if constexpr (vector > 4)
    if (pixel % 4 == 0) return body(std::integral_constant<int, 4>());
  if (pixel % 2 == 0) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 1>());
}

}  // namespace

cudaError_t resize_channels(const ResizeShape& given, Scalar type, void* y, const void* x, void* workspace,
                            cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    const ResizeShape shape = gathered(given);
    const int64_t lines = shape.outer * shape.axes[0].out * shape.axes[1].out;
    const TapTables tables(shape, workspace);
    if (const cudaError_t error = fill_taps(shape, tables, stream)) return error;
    with_taps(shape.interpolation, [&](auto taps) {
      with_width<T>(shape.inner[2], [&](auto width) {
        const int64_t of_pixel = shape.inner[2] / width(), units = shape.axes[2].out * of_pixel;
        const int64_t pieces = divide_up(units, int64_t{resize_threads * units_per_thread});
        resize_channels_kernel<T, taps(), width()>
            <<<static_cast<unsigned>(lines * pieces), resize_threads, 0, stream>>>(
                shape, tables, Divider32(static_cast<int32_t>(of_pixel)), static_cast<int32_t>(units), pieces,
                static_cast<T*>(y), static_cast<const T*>(x));
      });
    });
    return cudaGetLastError();
  });
}

cudaError_t resize_grad_channels(const ResizeShape& given, Scalar type, void* dx, const void* dy, void* workspace,
                                 cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    const ResizeShape shape = gathered(given);
    const int64_t lines = shape.outer * shape.axes[0].in * shape.axes[1].in;
    const TapTables tables(shape, workspace);
    if (const cudaError_t error = fill_spreads(shape, tables, stream)) return error;
    with_taps(shape.interpolation, [&](auto taps) {
      with_width<T>(shape.inner[2], [&](auto width) {
        const int64_t of_pixel = shape.inner[2] / width(), units = shape.axes[2].in * of_pixel;
        const int64_t pieces = divide_up(units, int64_t{resize_threads});
        resize_grad_channels_kernel<T, taps(), width()>
            <<<static_cast<unsigned>(lines * pieces), resize_threads, 0, stream>>>(
                shape, tables, Divider32(static_cast<int32_t>(of_pixel)), static_cast<int32_t>(units), pieces,
                static_cast<T*>(dx), static_cast<const T*>(dy));
      });
    });
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
