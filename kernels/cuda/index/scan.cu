#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/index/index.cuh"

// Serves cumsum, triangular and reverse_sequence. Every element is read and written once.

namespace plimsoll::cuda {
namespace {

// ---- Running sums ----

struct Lines {
  AxisShape axis;
  ScanEnds ends;
  ScanStart start;
  Scalar type;
  Divider inner;

  // Element k, counted from where the scan starts, of a line.
  __device__ int64_t at(int64_t line, int64_t k) const {
    int64_t i = line;
    const int64_t outer = inner.divide(i);
    return (outer * axis.length + (start == ScanStart::Last ? axis.length - 1 - k : k)) * axis.inner + i;
  }
};

// One thread per line, for lines that lie side by side.
template <typename Value>
__global__ void scan_threads_kernel(const __grid_constant__ Lines lines, int64_t n, void* y, const void* x) {
  const int64_t line = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (line >= n) return;
  Value sum = 0;
  for (int64_t k = 0; k < lines.axis.length; ++k) {
    const int64_t at = lines.at(line, k);
    const Value before = sum;
    sum += load_any<Value>({x, lines.type}, at);
    store_any(y, lines.type, at, lines.ends == ScanEnds::Exclusive ? before : sum);
  }
}

// One warp per line, 32 elements at a time.
template <typename Value>
__global__ void scan_warps_kernel(const __grid_constant__ Lines lines, int64_t n, void* y, const void* x) {
  const int64_t line = (int64_t{blockIdx.x} * block_threads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (line >= n) return;
  Value carry = 0;
  for (int64_t first = 0; first < lines.axis.length; first += 32) {
    const int64_t k = first + lane;
    const bool inside = k < lines.axis.length;
    Value sum = inside ? load_any<Value>({x, lines.type}, lines.at(line, k)) : Value{0};
    for (int distance = 1; distance < 32; distance *= 2) {
      const Value before = __shfl_up_sync(whole_warp, sum, distance);
      if (lane >= distance) sum += before;
    }
    Value before = __shfl_up_sync(whole_warp, sum, 1);
    if (lane == 0) before = 0;
    if (inside) store_any(y, lines.type, lines.at(line, k), carry + (lines.ends == ScanEnds::Exclusive ? before : sum));
    carry += __shfl_sync(whole_warp, sum, 31);
  }
}

template <typename Value>
cudaError_t scan(const Lines& lines, void* y, const void* x, cudaStream_t stream) {
  const int64_t n = lines.axis.outer * lines.axis.inner;
  if (lines.axis.inner >= 32)
    scan_threads_kernel<Value><<<blocks_for(n), block_threads, 0, stream>>>(lines, n, y, x);
  else
    scan_warps_kernel<Value><<<blocks_for(32 * n), block_threads, 0, stream>>>(lines, n, y, x);
  return cudaGetLastError();
}

// ---- By position ----

template <typename T>
__global__ void triangular_kernel(Triangle triangle, int64_t k, T* y, const T* x, Divider columns, Divider rows,
                                  int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t column = i;
  int64_t row = columns.divide(column);
  rows.divide(row);
  const int64_t diagonal = column - row;
  const bool kept = triangle == Triangle::Upper ? diagonal >= k : diagonal <= k;
  y[i] = kept ? x[i] : T{};
}

struct Reversed {
  Indices lengths;
  int64_t time_size, time_stride;
  Divider batch_strides, batches, time_strides, times;
};

template <typename Unit>
__global__ void reverse_kernel(const __grid_constant__ Reversed shape, int64_t n, Unit* y, const Unit* x) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t rest = i, batch = shape.batch_strides.divide(rest);
  shape.batches.divide(batch);
  rest = i;
  int64_t time = shape.time_strides.divide(rest);
  shape.times.divide(time);
  const int64_t length = load_any<int64_t>({shape.lengths.data, shape.lengths.type}, batch);
  if (length < 0 || length > shape.time_size) __trap();
  const int64_t source = time < length ? length - 1 - time : time;
  y[i] = x[i + (source - time) * shape.time_stride];
}

}  // namespace

cudaError_t running_sums(Scalar type, void* y, const void* x, const AxisShape& axis, ScanEnds ends, ScanStart start,
                         cudaStream_t stream) {
  if (axis.outer * axis.length * axis.inner == 0) return cudaSuccess;
  const Lines lines{axis, ends, start, type, Divider(axis.inner)};
  return is_float(type) ? scan<double>(lines, y, x, stream) : scan<int64_t>(lines, y, x, stream);
}

cudaError_t triangular(Triangle triangle, int64_t k, void* y, const void* x, int64_t planes, int64_t rows,
                       int64_t columns, int element_bytes, cudaStream_t stream) {
  const int64_t n = planes * rows * columns;
  if (n == 0) return cudaSuccess;
  return with_element_bytes(element_bytes, [&]<typename T>(T*) {
    triangular_kernel<<<blocks_for(n), block_threads, 0, stream>>>(
        triangle, k, static_cast<T*>(y), static_cast<const T*>(x), Divider(columns), Divider(rows), n);
  });
}

cudaError_t reverse_sequences(const Sequences& shape, void* y, const void* x, int64_t n, int element_bytes,
                              cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const int bytes = unit_of_run(shape.run * element_bytes), elements = bytes / element_bytes;
  const int64_t time_stride = shape.time_stride / elements, units = n / elements;
  const Reversed reversed{shape.lengths,
                          shape.time_size,
                          time_stride,
                          Divider(shape.batch_stride / elements),
                          Divider(shape.batch_size),
                          Divider(time_stride),
                          Divider(shape.time_size)};
  return with_unit_bytes(bytes, [&]<typename Unit>(Unit*) {
    reverse_kernel<<<blocks_for(units), block_threads, 0, stream>>>(reversed, units, static_cast<Unit*>(y),
                                                                    static_cast<const Unit*>(x));
  });
}

}  // namespace plimsoll::cuda
