#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"
#include "kernels/cuda/index/sort.cuh"

#include <limits>

// Serves sort_indices, segment_reduce and gather_grad, which is both. x is read and y written once beside the sort.
// Positions are sorted by the row that their index names, then every element of y combines its row's positions, in
// their order. A row of more than segment_chunk positions is combined in two stages, by chunks of the sorted positions
// and then over the chunks, so that a frequent row does not hold up the rest.

namespace plimsoll::cuda {
namespace {

constexpr int64_t chunk = segment_chunk;

__global__ void keys_kernel(SortArrays arrays, Indices indices, int64_t count, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= count) return;
  arrays.keys[i] = static_cast<uint32_t>(index_at(indices, i, size));
  arrays.positions[i] = static_cast<uint32_t>(i);
}

// starts[r]: how many sorted keys are below r, for r up to and including `size`.
__global__ void starts_kernel(uint32_t* starts, const uint32_t* keys, int64_t count, int64_t size) {
  const int64_t row = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (row > size) return;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  starts[row] = static_cast<uint32_t>(low);
}

// The three kernels share this. A column is a Vector of y's row.
struct Shape {
  Segments segments;
  const void* base;  // null, or of y's type and shape
  Reduction reduction;
  int64_t outer, inner;
  Divider sizes, chunks, columns;

  __device__ bool is_long(uint32_t row) const { return segments.starts[row + 1] - segments.starts[row] > chunk; }
};

// Sums have kernels of their own, without a choice for each element. A number that is not one loses against every other
// as an update, and stays as the base.
template <bool is_sum, typename C>
__device__ C combine(Reduction reduction, C old, C next) {
  if (is_sum) return old + next;
  if (reduction == Reduction::Max) return old < next ? next : old;
  if (reduction == Reduction::Min) return next < old ? next : old;
  return next;
}

template <bool is_sum, int length, typename C>
__device__ void combine_into(Reduction reduction, Vector<C, length>& old, const Vector<C, length>& next) {
#pragma unroll
  for (int k = 0; k < length; ++k) old.at[k] = combine<is_sum>(reduction, old.at[k], next.at[k]);
}

template <bool is_sum, int length, typename D>
__device__ Vector<Compute<D>, length> combine_entries(const Shape& s, const D* x, int64_t outer, int64_t column,
                                                      int64_t begin, int64_t end) {
  constexpr auto infinity = std::numeric_limits<Compute<D>>::infinity();
  Vector<Compute<D>, length> total{};
  if (!is_sum)
#pragma unroll
    for (int k = 0; k < length; ++k) total.at[k] = s.reduction == Reduction::Max ? -infinity : infinity;
  const D* first = x + outer * s.segments.count * s.inner + column * length;
#pragma unroll 4
  for (int64_t entry = begin; entry < end; ++entry) {
    const auto run = load_vector<length>(first + s.segments.order[entry] * s.inner);
    Vector<Compute<D>, length> next;
#pragma unroll
    for (int k = 0; k < length; ++k) next.at[k] = widen(run.at[k]);
    combine_into<is_sum>(s.reduction, total, next);
  }
  return total;
}

// Of a row with entries.
template <bool is_sum, int length, typename T>
__device__ void store_total(const Shape& s, T* y, int64_t outer, int64_t row, int64_t column,
                            const Vector<Compute<T>, length>& total) {
  const int64_t at = (outer * s.segments.size + row) * s.inner + column * length;
  Vector<T, length> base{}, rounded;
  if (s.base) base = load_vector<length>(static_cast<const T*>(s.base) + at);
#pragma unroll
  for (int k = 0; k < length; ++k)
    rounded.at[k] = narrow<T>(combine<is_sum>(s.reduction, widen(base.at[k]), total.at[k]));
  store_vector(y + at, rounded);
}

template <int length, typename T>
__device__ void store_base(const Shape& s, T* y, int64_t outer, int64_t row, int64_t column) {
  const int64_t at = (outer * s.segments.size + row) * s.inner + column * length;
  Vector<T, length> base{};
  if (s.base) base = load_vector<length>(static_cast<const T*>(s.base) + at);
  store_vector(y + at, base);
}

// A thread a column of y [outer, size, columns]; long rows are left out, and in place those without entries.
template <bool is_sum, int length, typename T, typename D>
__global__ void __launch_bounds__(block_threads)
    reduce_rows_kernel(const __grid_constant__ Shape s, int64_t n, T* y, const D* x) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t row = s.columns.divide(column);
  const int64_t outer = s.sizes.divide(row), end = s.segments.starts[row + 1];
  int64_t begin = s.segments.starts[row];
  if (begin == end) {
    if (s.base != y) store_base<length>(s, y, outer, row, column);
    return;
  }
  if (s.reduction == Reduction::None) begin = end - 1;
  if (end - begin > chunk) return;
  store_total<is_sum>(s, y, outer, row, column, combine_entries<is_sum, length>(s, x, outer, column, begin, end));
}

// partial[chunk][slot][outer][inner], at a column of `length` elements.
template <int length, typename C>
__device__ C* partial_at(const Shape& s, C* partial, int64_t piece, int slot, int64_t outer, int64_t column) {
  return partial + ((2 * piece + slot) * s.outer + outer) * s.inner + column * length;
}

// A chunk holds entries of two long rows at most: slot 0 is for the row of its first entry, slot 1 for that of its
// last when it is another.
template <bool is_sum, int length, typename D>
__global__ void __launch_bounds__(block_threads)
    reduce_chunks_kernel(const __grid_constant__ Shape s, int64_t n, Compute<D>* partial, const D* x) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t piece = s.columns.divide(column);
  const int64_t outer = s.chunks.divide(piece);
  const int64_t begin = piece * chunk, end = begin + chunk < s.segments.count ? begin + chunk : s.segments.count;
  const uint32_t first = s.segments.rows[begin], last = s.segments.rows[end - 1];
#pragma unroll 1
  for (int slot = 0; slot < 2; ++slot) {
    const uint32_t row = slot == 0 ? first : last;
    if (!s.is_long(row) || (slot == 1 && last == first)) continue;
    const int64_t row_begin = s.segments.starts[row], row_end = s.segments.starts[row + 1];
    store_vector(partial_at<length>(s, partial, piece, slot, outer, column),
                 combine_entries<is_sum, length>(s, x, outer, column, row_begin > begin ? row_begin : begin,
                                                 row_end < end ? row_end : end));
  }
}

// The chunk in which a long row starts combines the row's partial results: its own, then those of the chunks that
// follow.
template <bool is_sum, int length, typename T>
__global__ void __launch_bounds__(block_threads)
    reduce_partials_kernel(const __grid_constant__ Shape s, int64_t n, T* y, Compute<T>* partial) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t piece = s.columns.divide(column);
  const int64_t outer = s.chunks.divide(piece);
  const int64_t begin = piece * chunk, end = begin + chunk < s.segments.count ? begin + chunk : s.segments.count;
  const uint32_t row = s.segments.rows[end - 1];
  if (!s.is_long(row) || s.segments.starts[row] < begin) return;
  const int own_slot = s.segments.rows[begin] == row ? 0 : 1;
  const int64_t last_piece = (int64_t{s.segments.starts[row + 1]} - 1) / chunk;
  auto total = load_vector<length>(partial_at<length>(s, partial, piece, own_slot, outer, column));
#pragma unroll 4
  for (int64_t next = piece + 1; next <= last_piece; ++next)
    combine_into<is_sum>(s.reduction, total,
                         load_vector<length>(partial_at<length>(s, partial, next, 0, outer, column)));
  store_total<is_sum>(s, y, outer, row, column, total);
}

template <bool is_sum, int length, typename T, typename D>
cudaError_t reduce_all(Shape s, T* y, const D* x, Compute<T>* partial, cudaStream_t stream) {
  const int64_t columns = s.inner / length, in_rows = s.outer * s.segments.size * columns;
  s.columns = Divider(columns);
  s.sizes = Divider(s.segments.size);
  reduce_rows_kernel<is_sum, length><<<blocks_for(in_rows), block_threads, 0, stream>>>(s, in_rows, y, x);
  if (s.segments.count > chunk && s.reduction != Reduction::None) {
    const int64_t chunks = divide_up(s.segments.count, chunk), in_chunks = s.outer * chunks * columns;
    s.chunks = Divider(chunks);
    reduce_chunks_kernel<is_sum, length><<<blocks_for(in_chunks), block_threads, 0, stream>>>(s, in_chunks, partial, x);
    reduce_partials_kernel<is_sum, length>
        <<<blocks_for(in_chunks), block_threads, 0, stream>>>(s, in_chunks, y, partial);
  }
  return cudaGetLastError();
}

template <bool is_sum, typename T, typename D>
cudaError_t reduce_vectors(const Shape& s, T* y, const D* x, void* workspace, cudaStream_t stream) {
  constexpr int length = 16 / sizeof(T);
  auto* partial = static_cast<Compute<T>*>(workspace);
  return s.inner % length == 0 ? reduce_all<is_sum, length>(s, y, x, partial, stream)
                               : reduce_all<is_sum, 1>(s, y, x, partial, stream);
}

void find_starts(uint32_t* starts, const uint32_t* rows, int64_t count, int64_t size, cudaStream_t stream) {
  starts_kernel<<<blocks_for(size + 1), block_threads, 0, stream>>>(starts, rows, count, size);
}

cudaError_t sort(SortArrays& arrays, const Indices& indices, int64_t count, int64_t size, cudaStream_t stream) {
  if (count > 0) keys_kernel<<<blocks_for(count), block_threads, 0, stream>>>(arrays, indices, count, size);
  return sort_pairs(arrays, count, size, stream);
}

}  // namespace

cudaError_t sort_indices(uint32_t* order, uint32_t* rows, uint32_t* starts, const Indices& indices, int64_t count,
                         int64_t size, void* workspace, cudaStream_t stream) {
  char* rest = static_cast<char*>(workspace);
  SortArrays arrays = take_sort_arrays_into(rows, order, rest, count, size);
  if (const cudaError_t error = sort(arrays, indices, count, size, stream)) return error;
  find_starts(starts, rows, count, size, stream);
  return cudaGetLastError();
}

cudaError_t segment_reduce(Reduction reduction, Scalar type, void* y, Scalar x_type, const void* x, const void* base,
                           const Segments& segments, int64_t outer, int64_t inner, void* workspace,
                           cudaStream_t stream) {
  if (outer * segments.size * inner == 0) return cudaSuccess;
  const Shape s{segments, base, reduction, outer, inner, {}, {}, {}};
  const auto sum = [&]<typename D, typename T>(D*, T*) {
    return reduce_vectors<true>(s, static_cast<T*>(y), static_cast<const D*>(x), workspace, stream);
  };
  double* f64 = nullptr;
  if (reduction == Reduction::Add) return type == Scalar::F64 ? sum(f64, f64) : with_f32_math_pair(x_type, type, sum);
  if (type != x_type || reduction == Reduction::Mul) return cudaErrorInvalidValue;
  return with_float(type, [&]<typename T>(T*) {
    return reduce_vectors<false>(s, static_cast<T*>(y), static_cast<const T*>(x), workspace, stream);
  });
}

cudaError_t gather_rows_grad(Scalar type, void* dx, Scalar dy_type, const void* dy, const void* addend,
                             const Indices& indices, int64_t outer, int64_t size, int64_t count, int64_t inner,
                             void* workspace, cudaStream_t stream) {
  if (outer * size * inner == 0) return cudaSuccess;
  char* rest = static_cast<char*>(workspace);
  SortArrays arrays = take_sort_arrays(rest, count);
  auto* starts = reinterpret_cast<uint32_t*>(rest);
  if (const cudaError_t error = sort(arrays, indices, count, size, stream)) return error;
  find_starts(starts, arrays.keys, count, size, stream);
  const Segments segments{arrays.positions, arrays.keys, starts, count, size};
  return segment_reduce(Reduction::Add, type, dx, dy_type, dy, addend, segments, outer, inner,
                        rest + array_bytes(4 * (size + 1)), stream);
}

}  // namespace plimsoll::cuda
