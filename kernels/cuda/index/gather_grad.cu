#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"
#include "kernels/cuda/index/sort.cuh"

// Serves gather_grad. dy is read and dx written once beside the sort of the indices. The gradient of picking rows:
// positions are sorted by the row they picked, then every element of dx is the sum over its row's positions, in their
// order. A row picked more often than gather_grad_chunk times is summed in two stages, by chunks of the sorted
// positions and then over the chunks, so that a frequent token does not hold up the rest.

namespace plimsoll::cuda {
namespace {

constexpr int64_t chunk = gather_grad_chunk;

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

// The three sums share this. A column is a Vector of dx's row.
struct Sums {
  const uint32_t *keys, *positions, *starts;
  const void* addend;  // null, or of dx's type and shape
  int64_t outer, size, count, inner;
  Divider sizes, chunks, columns;

  __device__ bool is_long(uint32_t row) const { return starts[row + 1] - starts[row] > chunk; }
};

template <int length, typename D>
__device__ Vector<Compute<D>, length> sum_entries(const Sums& s, const D* dy, int64_t outer, int64_t column,
                                                  int64_t begin, int64_t end) {
  Vector<Compute<D>, length> sum{};
  const D* first = dy + outer * s.count * s.inner + column * length;
#pragma unroll 4
  for (int64_t entry = begin; entry < end; ++entry) {
    const auto run = load_vector<length>(first + s.positions[entry] * s.inner);
#pragma unroll
    for (int k = 0; k < length; ++k) sum.at[k] += widen(run.at[k]);
  }
  return sum;
}

template <int length, typename T>
__device__ void store_sum(const Sums& s, T* dx, int64_t outer, int64_t row, int64_t column,
                          const Vector<Compute<T>, length>& sum) {
  const int64_t at = (outer * s.size + row) * s.inner + column * length;
  Vector<T, length> added{}, rounded;
  if (s.addend) added = load_vector<length>(static_cast<const T*>(s.addend) + at);
#pragma unroll
  for (int k = 0; k < length; ++k) rounded.at[k] = narrow<T>(sum.at[k] + widen(added.at[k]));
  store_vector(dx + at, rounded);
}

// A thread a column of dx [outer, size, columns]; long rows are left out, and in place those that nothing is added to.
template <int length, typename T, typename D>
__global__ void __launch_bounds__(block_threads)
    sum_rows_kernel(const __grid_constant__ Sums s, int64_t n, T* dx, const D* dy) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t row = s.columns.divide(column);
  const int64_t outer = s.sizes.divide(row), begin = s.starts[row], end = s.starts[row + 1];
  if (begin == end && s.addend == dx) return;
  if (end - begin <= chunk) store_sum(s, dx, outer, row, column, sum_entries<length>(s, dy, outer, column, begin, end));
}

// partial[chunk][slot][outer][inner], at a column of `length` elements.
template <int length, typename C>
__device__ C* partial_at(const Sums& s, C* partial, int64_t piece, int slot, int64_t outer, int64_t column) {
  return partial + ((2 * piece + slot) * s.outer + outer) * s.inner + column * length;
}

// A chunk holds entries of two long rows at most: slot 0 is for the row of its first entry, slot 1 for that of its
// last when it is another.
template <int length, typename D>
__global__ void __launch_bounds__(block_threads)
    sum_chunks_kernel(const __grid_constant__ Sums s, int64_t n, Compute<D>* partial, const D* dy) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t piece = s.columns.divide(column);
  const int64_t outer = s.chunks.divide(piece);
  const int64_t begin = piece * chunk, end = begin + chunk < s.count ? begin + chunk : s.count;
  const uint32_t first = s.keys[begin], last = s.keys[end - 1];
  if (s.is_long(first)) {
    const int64_t row_end = s.starts[first + 1];
    store_vector(partial_at<length>(s, partial, piece, 0, outer, column),
                 sum_entries<length>(s, dy, outer, column, begin, row_end < end ? row_end : end));
  }
  if (last != first && s.is_long(last))
    store_vector(partial_at<length>(s, partial, piece, 1, outer, column),
                 sum_entries<length>(s, dy, outer, column, s.starts[last], end));
}

// The chunk in which a long row starts adds up the row's partial sums: its own, then those of the chunks that follow.
template <int length, typename T>
__global__ void __launch_bounds__(block_threads)
    sum_partials_kernel(const __grid_constant__ Sums s, int64_t n, T* dx, Compute<T>* partial) {
  int64_t column = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (column >= n) return;
  int64_t piece = s.columns.divide(column);
  const int64_t outer = s.chunks.divide(piece);
  const int64_t begin = piece * chunk, end = begin + chunk < s.count ? begin + chunk : s.count;
  const uint32_t row = s.keys[end - 1];
  if (!s.is_long(row) || s.starts[row] < begin) return;
  const int own_slot = s.keys[begin] == row ? 0 : 1;
  const int64_t last_piece = (int64_t{s.starts[row + 1]} - 1) / chunk;
  auto sum = load_vector<length>(partial_at<length>(s, partial, piece, own_slot, outer, column));
#pragma unroll 4
  for (int64_t next = piece + 1; next <= last_piece; ++next) {
    const auto part = load_vector<length>(partial_at<length>(s, partial, next, 0, outer, column));
#pragma unroll
    for (int k = 0; k < length; ++k) sum.at[k] += part.at[k];
  }
  store_sum<length>(s, dx, outer, row, column, sum);
}

template <int length, typename T, typename D>
cudaError_t sum_all(Sums& s, T* dx, const D* dy, Compute<T>* partial, cudaStream_t stream) {
  const int64_t columns = s.inner / length, in_rows = s.outer * s.size * columns;
  s.columns = Divider(columns);
  s.sizes = Divider(s.size);
  sum_rows_kernel<length><<<blocks_for(in_rows), block_threads, 0, stream>>>(s, in_rows, dx, dy);
  if (s.count > chunk) {
    const int64_t chunks = divide_up(s.count, chunk), in_chunks = s.outer * chunks * columns;
    s.chunks = Divider(chunks);
    sum_chunks_kernel<length><<<blocks_for(in_chunks), block_threads, 0, stream>>>(s, in_chunks, partial, dy);
    sum_partials_kernel<length><<<blocks_for(in_chunks), block_threads, 0, stream>>>(s, in_chunks, dx, partial);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t gather_rows_grad(Scalar type, void* dx, Scalar dy_type, const void* dy, const void* addend,
                             const Indices& indices, int64_t outer, int64_t size, int64_t count, int64_t inner,
                             void* workspace, cudaStream_t stream) {
  if (outer * size * inner == 0) return cudaSuccess;
  char* rest = static_cast<char*>(workspace);
  SortArrays arrays = take_sort_arrays(rest, count);
  auto* starts = reinterpret_cast<uint32_t*>(rest);
  void* partial = rest + array_bytes(4 * (size + 1));
  if (count > 0) keys_kernel<<<blocks_for(count), block_threads, 0, stream>>>(arrays, indices, count, size);
  if (const cudaError_t error = sort_pairs(arrays, count, size, stream)) return error;
  starts_kernel<<<blocks_for(size + 1), block_threads, 0, stream>>>(starts, arrays.keys, count, size);

  Sums s{arrays.keys, arrays.positions, starts, addend, outer, size, count, inner, {}, {}, {}};
  const auto sum = [&]<typename D, typename T>(D*, T*) {
    constexpr int length = 16 / sizeof(T);
    auto* sums = static_cast<Compute<T>*>(partial);
    if (inner % length == 0) return sum_all<length>(s, static_cast<T*>(dx), static_cast<const D*>(dy), sums, stream);
    return sum_all<1>(s, static_cast<T*>(dx), static_cast<const D*>(dy), sums, stream);
  };
  double* f64 = nullptr;
  return type == Scalar::F64 ? sum(f64, f64) : with_f32_math_pair(dy_type, type, sum);
}

}  // namespace plimsoll::cuda
