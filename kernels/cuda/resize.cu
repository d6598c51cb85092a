#include "kernels/cuda/resize.h"

#include "kernels/cuda/resize_workspace.h"
#include "kernels/cuda/rows.cuh"

#include <algorithm>
#include <cmath>

// The taps of each axis are computed once, in double and operation by operation as on the host: a tie between two
// neighbours must fall the same way. Both kernels then go by lines: a line is the last resampled axis with what stands
// inside of it, which is contiguous on both sides.

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, max_outer_axes = max_resized_axes - 1;
constexpr int most_blocks = 1 << 20;
constexpr int segment_elements = 4096;  // of a line of dy that a block holds summed

// ---- Taps ----

__device__ double position_of(const ResizedAxis& axis, int64_t k) {
  return axis.offset + (static_cast<double>(k) + axis.shift) * axis.factor / axis.divisor - axis.back;
}

__device__ double nearest_of(NearestRounding rounding, double at) {
  switch (rounding) {
    case NearestRounding::Floor: return floor(at);
    case NearestRounding::Ceil: return ceil(at);
    case NearestRounding::PreferCeil: return floor(at + 0.5);
    default: return ceil(at - 0.5);
  }
}

// The cubic convolution kernel (Keys 1981) at `distance` from the centre.
__device__ double cubic_weight(double a, double distance) {
  const double d = fabs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

__device__ AxisTaps taps_of(const ResizeShape& shape, const ResizedAxis& axis, int64_t k) {
  const double at = position_of(axis, k), low = floor(at), fraction = at - low;
  const bool nearest = shape.interpolation == Interpolation::Nearest, cubic = shape.interpolation == Interpolation::Cubic;
  const int count = nearest ? 1 : cubic ? 4 : 2;
  const double first = nearest ? nearest_of(shape.rounding, at) : low - (cubic ? 1 : 0);
  AxisTaps taps{};
  double weights[max_taps] = {1}, sum = 0;
#pragma unroll
  for (int i = 0; i < max_taps; ++i) {
    if (i >= count) continue;
    const double index = first + i;
    if (!nearest) weights[i] = cubic ? cubic_weight(shape.cubic_a, i - 1 - fraction) : i == 0 ? 1 - fraction : fraction;
    if (shape.exclude_outside && !nearest && (index < 0 || index >= static_cast<double>(axis.in))) weights[i] = 0;
    sum += weights[i];
    taps.index[i] = static_cast<int32_t>(fmin(fmax(index, 0.0), static_cast<double>(axis.in - 1)));
  }
#pragma unroll
  for (int i = 0; i < max_taps; ++i)
    if (i < count) taps.weight[i] = static_cast<float>(shape.exclude_outside && !nearest ? weights[i] / sum : weights[i]);
  return taps;
}

__global__ void __launch_bounds__(block_threads) taps_kernel(ResizeShape shape, AxisTaps* taps) {
  int64_t at = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  AxisTaps* row = taps + at;
  for (int d = 0; d < shape.used; ++d) {
    if (at < shape.axes[d].out) {
      *row = taps_of(shape, shape.axes[d], at);
      return;
    }
    at -= shape.axes[d].out;
  }
}

// The table of axis d.
__device__ const AxisTaps* taps_of_axis(const ResizeShape& shape, const AxisTaps* taps, int d) {
  for (int before = 0; before < d; ++before) taps += shape.axes[before].out;
  return taps;
}

// ---- Lines ----

// 64-bit division is several times dearer, and lines are seldom that long.
__device__ int64_t quotient(int64_t dividend, int64_t divisor) {
  constexpr int64_t past_32_bits = int64_t{1} << 32;
  if (divisor == 1) return dividend;
  if (dividend >= past_32_bits || divisor >= past_32_bits) return dividend / divisor;
  return static_cast<uint32_t>(dividend) / static_cast<uint32_t>(divisor);
}

enum class Side : uint8_t { Input, Output };

__host__ __device__ int64_t size_of(const ResizedAxis& axis, Side side) {
  return side == Side::Input ? axis.in : axis.out;
}

__host__ __device__ int64_t line_length(const ResizeShape& shape, Side side) {
  return size_of(shape.axes[shape.used - 1], side) * shape.inner[shape.used - 1];
}

// A line by its indices: outer, then each resampled axis before the last and what stands inside of it.
struct Line {
  int64_t outer, axis[max_outer_axes], inner[max_outer_axes];

  __device__ Line(const ResizeShape& shape, Side side, int64_t number) : axis{}, inner{} {
#pragma unroll
    for (int d = max_outer_axes - 1; d >= 0; --d) {
      if (d >= shape.used - 1) continue;
      inner[d] = number % shape.inner[d];
      number /= shape.inner[d];
      axis[d] = number % size_of(shape.axes[d], side);
      number /= size_of(shape.axes[d], side);
    }
    outer = number;
  }

  // Where the line at these indices of the axes starts on a side.
  __device__ int64_t start(const ResizeShape& shape, Side side, int64_t a, int64_t b) const {
    const int64_t at[max_outer_axes] = {a, b};
    int64_t number = outer;
#pragma unroll
    for (int d = 0; d < max_outer_axes; ++d)
      if (d < shape.used - 1) number = (number * size_of(shape.axes[d], side) + at[d]) * shape.inner[d] + inner[d];
    return number * line_length(shape, side);
  }
};

// ---- Forward ----

// The lines of x that a line of y reads, with the weights they enter by: as many as each outer axis has taps.
template <typename T, int taps>
struct LinesRead {
  const T* from[taps * taps];
  float weight[taps * taps];
  int first, second;  // taps of the first and the second outer axis; 1 where there is none

  __device__ LinesRead(const ResizeShape& shape, const T* x, const AxisTaps* tables, const Line& line)
      : first(shape.used > 1 ? taps : 1), second(shape.used > 2 ? taps : 1) {
    const AxisTaps none{{0}, {1.0f}};
    const AxisTaps a = shape.used > 1 ? tables[line.axis[0]] : none;
    const AxisTaps b = shape.used > 2 ? taps_of_axis(shape, tables, 1)[line.axis[1]] : none;
#pragma unroll
    for (int p = 0; p < taps; ++p)
#pragma unroll
      for (int q = 0; q < taps; ++q) {
        from[p * taps + q] = x + line.start(shape, Side::Input, a.index[p], b.index[q]);
        weight[p * taps + q] = a.weight[p] * b.weight[q];
      }
  }
};

// threadIdx.x goes along a line, threadIdx.y from line to line. An element has 1, 2 or 4 `taps` along an axis.
template <typename T, int taps>
__global__ void __launch_bounds__(block_threads)
    resize_kernel(ResizeShape shape, T* y, const T* x, const AxisTaps* tables, int64_t lines) {
  const int last = shape.used - 1;
  const int64_t length = line_length(shape, Side::Output), inner = shape.inner[last];
  const AxisTaps* along = taps_of_axis(shape, tables, last);
  for (int64_t l = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; l < lines; l += int64_t{gridDim.x} * blockDim.y) {
    const LinesRead<T, taps> read(shape, x, tables, Line(shape, Side::Output, l));
    for (int64_t j = threadIdx.x; j < length; j += blockDim.x) {
      const int64_t k = quotient(j, inner), c = j - k * inner;
      float sum = 0.0f;
#pragma unroll
      for (int p = 0; p < taps; ++p)
#pragma unroll
        for (int q = 0; q < taps; ++q) {
          if (p >= read.first || q >= read.second) continue;
#pragma unroll
          for (int t = 0; t < taps; ++t)
            sum += read.weight[p * taps + q] * along[k].weight[t] *
                   widen(read.from[p * taps + q][int64_t{along[k].index[t]} * inner + c]);
        }
      y[l * length + j] = narrow<T>(sum);
    }
  }
}

// ---- Gradient ----

// Result elements from first to last, among them all that read element i of x along the axis: those whose position is
// within two of it, and at the edges all beyond.
struct Readers {
  int64_t first, last;

  __device__ Readers(const ResizeShape& shape, int d, int64_t i) : first(0), last(shape.axes[d].out - 1) {
    const ResizedAxis& axis = shape.axes[d];
    if (axis.factor == 0) return;
    const double step = axis.factor / axis.divisor, start = position_of(axis, 0);
    if (i > 0) first = max(first, static_cast<int64_t>(floor((static_cast<double>(i) - 2 - start) / step)) - 1);
    if (i < axis.in - 1) last = min(last, static_cast<int64_t>(ceil((static_cast<double>(i) + 2 - start) / step)) + 1);
  }
};

// What an axis' result element with these taps takes of element i.
__device__ float weight_of(const AxisTaps& taps, int64_t i) {
  float weight = 0.0f;
#pragma unroll
  for (int t = 0; t < max_taps; ++t) weight += taps.index[t] == i ? taps.weight[t] : 0.0f;
  return weight;
}

// Element `at` of the lines of dy that read this line of dx, weighed and summed.
template <typename T>
__device__ float sum_of_readers(const ResizeShape& shape, const T* dy, const AxisTaps* tables, const Line& line, int64_t at) {
  if (shape.used == 1) return widen(dy[line.start(shape, Side::Output, 0, 0) + at]);
  float sum = 0.0f;
  const Readers a(shape, 0, line.axis[0]);
  for (int64_t p = a.first; p <= a.last; ++p) {
    const float weight = weight_of(tables[p], line.axis[0]);
    if (weight == 0.0f) continue;
    if (shape.used == 2) {
      sum += weight * widen(dy[line.start(shape, Side::Output, p, 0) + at]);
      continue;
    }
    const Readers b(shape, 1, line.axis[1]);
    for (int64_t q = b.first; q <= b.last; ++q) {
      const float both = weight * weight_of(taps_of_axis(shape, tables, 1)[q], line.axis[1]);
      if (both != 0.0f) sum += both * widen(dy[line.start(shape, Side::Output, p, q) + at]);
    }
  }
  return sum;
}

// A block makes block_threads elements of a line of dx: it sums the lines of dy that read the line, a segment at a time,
// and each thread picks from the sum what reads its element. `tiles` of them are a line.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    resize_grad_kernel(ResizeShape shape, T* dx, const T* dy, const AxisTaps* tables, int64_t lines, int64_t tiles) {
  __shared__ float summed[segment_elements];
  const int last = shape.used - 1;
  const int64_t length = line_length(shape, Side::Input), inner = shape.inner[last];
  const AxisTaps* along = taps_of_axis(shape, tables, last);
  for (int64_t work = blockIdx.x; work < lines * tiles; work += gridDim.x) {
    const int64_t l = work / tiles, start = work % tiles * block_threads, end = min(start + block_threads, length);
    const Line line(shape, Side::Input, l);
    const int64_t j = min(start + threadIdx.x, end - 1), k = quotient(j, inner), c = j - k * inner;
    const Readers mine(shape, last, k);
    const int64_t first = Readers(shape, last, start / inner).first * inner;
    const int64_t behind = (Readers(shape, last, (end - 1) / inner).last + 1) * inner;
    float sum = 0.0f;
    for (int64_t segment = first; segment < behind; segment += segment_elements) {
      const int64_t next = min(segment + segment_elements, behind);
      __syncthreads();  // the segment before may still be read
      for (int64_t at = segment + threadIdx.x; at < next; at += block_threads)
        summed[at - segment] = sum_of_readers(shape, dy, tables, line, at);
      __syncthreads();
      const int64_t from = segment > c ? quotient(segment - c + inner - 1, inner) : 0;
      for (int64_t r = max(mine.first, from); r <= mine.last && r * inner + c < next; ++r)
        sum += weight_of(along[r], k) * summed[r * inner + c - segment];
    }
    if (start + threadIdx.x < end) dx[l * length + j] = narrow<T>(sum);
  }
}

// ---- Launches ----

unsigned blocks_of(int64_t count) { return static_cast<unsigned>(std::min<int64_t>(count, most_blocks)); }

int64_t lines_of(const ResizeShape& shape, Side side) {
  int64_t lines = shape.outer;
  for (int d = 0; d + 1 < shape.used; ++d) lines *= size_of(shape.axes[d], side) * shape.inner[d];
  return lines;
}

cudaError_t fill_taps(const ResizeShape& shape, AxisTaps* taps, cudaStream_t stream) {
  int64_t rows = 0;
  for (int d = 0; d < shape.used; ++d) rows += shape.axes[d].out;
  if (rows == 0) return cudaSuccess;
  taps_kernel<<<static_cast<unsigned>(divide_up(rows, block_threads)), block_threads, 0, stream>>>(shape, taps);
  return cudaGetLastError();
}

// Eight elements of a line or more for a thread.
dim3 forward_block(int64_t length) {
  unsigned along = warp_threads;
  while (along < block_threads && int64_t{along} * 8 < length) along *= 2;
  return {along, block_threads / along};
}

template <typename T>
cudaError_t launch_forward(const ResizeShape& shape, T* y, const T* x, const AxisTaps* taps, cudaStream_t stream) {
  const int64_t lines = lines_of(shape, Side::Output);
  const dim3 block = forward_block(line_length(shape, Side::Output));
  const unsigned blocks = blocks_of(divide_up(lines, block.y));
  switch (shape.interpolation) {
    case Interpolation::Nearest: resize_kernel<T, 1><<<blocks, block, 0, stream>>>(shape, y, x, taps, lines); break;
    case Interpolation::Linear: resize_kernel<T, 2><<<blocks, block, 0, stream>>>(shape, y, x, taps, lines); break;
    case Interpolation::Cubic: resize_kernel<T, 4><<<blocks, block, 0, stream>>>(shape, y, x, taps, lines); break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t resize(const ResizeShape& shape, Scalar type, void* y, const void* x, void* taps, cudaStream_t stream) {
  return with_f32_math(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (shape.used == 0) return cudaMemcpyAsync(y, x, static_cast<size_t>(shape.outer) * sizeof(T), cudaMemcpyDeviceToDevice, stream);
    if (lines_of(shape, Side::Output) * line_length(shape, Side::Output) == 0) return cudaSuccess;
    if (const cudaError_t error = fill_taps(shape, static_cast<AxisTaps*>(taps), stream)) return error;
    return launch_forward(shape, static_cast<T*>(y), static_cast<const T*>(x), static_cast<const AxisTaps*>(taps), stream);
  });
}

cudaError_t resize_grad(const ResizeShape& shape, Scalar type, void* dx, const void* dy, void* taps, cudaStream_t stream) {
  return with_f32_math(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (shape.used == 0) return cudaMemcpyAsync(dx, dy, static_cast<size_t>(shape.outer) * sizeof(T), cudaMemcpyDeviceToDevice, stream);
    const int64_t lines = lines_of(shape, Side::Input), tiles = divide_up(line_length(shape, Side::Input), block_threads);
    if (lines * tiles == 0) return cudaSuccess;
    if (const cudaError_t error = fill_taps(shape, static_cast<AxisTaps*>(taps), stream)) return error;
    resize_grad_kernel<<<blocks_of(lines * tiles), block_threads, 0, stream>>>(
        shape, static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const AxisTaps*>(taps), lines, tiles);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
