#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"

#include <algorithm>

// Serves gather_elements_grad and scatter_elements that adds floats. A line of y lies in shared memory in f32 while its
// updates are added in their order, whatever the indices: a warp's lanes have neighbouring updates of one line, those
// with equal indices one after the other, or each a line of its own where elements of a line lie apart. Reads x,
// indices and updates once and writes y once.

namespace plimsoll::cuda {
namespace {

constexpr int max_warps = 8, updates_ahead = 4;

struct Lines {
  Indices indices;
  int64_t outer, inner;
  int size, count;  // elements of a line, updates of it
  Divider sets;

  explicit Lines(const IndexLines& from)
      : indices(from.indices),
        outer(from.outer),
        inner(from.inner),
        size(static_cast<int>(from.size)),
        count(static_cast<int>(from.count)),
        sets(from.sets) {}

  __device__ int64_t set_of(int64_t slice) const {
    sets.divide(slice);
    return slice;
  }
};

// A warp a line of [outer, size].
template <typename T>
__global__ void __launch_bounds__(max_warps* warp_threads, 4)
    add_to_rows_kernel(T* y, const T* x, const T* __restrict__ updates, const __grid_constant__ Lines lines) {
  extern __shared__ float shared[];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / warp_threads) + warp;
  if (row >= lines.outer) return;
  float* sums = shared + int64_t{warp} * lines.size;
  if (x == nullptr)
    for (int at = lane; at < lines.size; at += warp_threads) sums[at] = 0;
  else
    for_row(x + row * lines.size, lines.size, lane, warp_threads, [&](int64_t at, const auto& values) {
      constexpr int n = sizeof(values.at) / sizeof(T);
#pragma unroll
      for (int i = 0; i < n; ++i) sums[at + i] = widen(values.at[i]);
    });
  __syncwarp();
  const int64_t first = row * lines.count, first_index = lines.set_of(row) * lines.count;
  for (int begin = 0; begin < lines.count; begin += updates_ahead * warp_threads) {
    int places[updates_ahead];
    float values[updates_ahead];
#pragma unroll
    for (int i = 0; i < updates_ahead; ++i) {
      const int update = begin + i * warp_threads + lane;
      const bool is_there = update < lines.count;
      places[i] = is_there ? static_cast<int>(index_at(lines.indices, first_index + update, lines.size)) : -1;
      values[i] = is_there ? widen(updates[first + update]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < updates_ahead; ++i) {
      const unsigned equal = __match_any_sync(whole_warp, places[i]);
      const int before = places[i] < 0 ? -1 : __popc(equal & ((1u << lane) - 1));  // lanes of the same place
      for (int turn = 0; __any_sync(whole_warp, before >= turn); ++turn) {
        if (before == turn) sums[places[i]] += values[i];
        __syncwarp();
      }
    }
  }
  constexpr int n = vector_length<T>;
  T* to = y + row * lines.size;
  const bool whole = lines.size % n == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
  for (int at = whole ? lane * n : lines.size; at < lines.size; at += warp_threads * n) {
    Vector<T, n> rounded;
#pragma unroll
    for (int i = 0; i < n; ++i) rounded.at[i] = narrow<T>(sums[at + i]);
    store_vector(to + at, rounded);
  }
  for (int at = whole ? lines.size : lane; at < lines.size; at += warp_threads) to[at] = narrow<T>(sums[at]);
}

// A thread a line of [outer, size, inner], a warp 32 neighbours.
template <typename T>
__global__ void __launch_bounds__(max_warps* warp_threads)
    add_to_columns_kernel(T* y, const T* x, const T* __restrict__ updates, const __grid_constant__ Lines lines,
                          Divider column_warps) {
  extern __shared__ float shared[];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  int64_t column = int64_t{blockIdx.x} * (blockDim.x / warp_threads) + warp;
  const int64_t outer = column_warps.divide(column);
  column = column * warp_threads + lane;
  if (outer >= lines.outer || column >= lines.inner) return;
  float* sums = shared + int64_t{warp} * lines.size * warp_threads + lane;
  const int64_t line = outer * lines.size * lines.inner + column, first = outer * lines.count * lines.inner + column;
  const int64_t first_index = lines.set_of(outer) * lines.count * lines.inner + column;
#pragma unroll 8
  for (int at = 0; at < lines.size; ++at)
    sums[at * warp_threads] = x == nullptr ? 0.0f : widen(x[line + at * lines.inner]);
  for (int begin = 0; begin < lines.count; begin += 2 * updates_ahead) {
    int places[2 * updates_ahead];
    float values[2 * updates_ahead];
#pragma unroll
    for (int i = 0; i < 2 * updates_ahead; ++i) {
      const bool is_there = begin + i < lines.count;
      const int64_t at = (begin + i) * lines.inner;
      places[i] = is_there ? static_cast<int>(index_at(lines.indices, first_index + at, lines.size)) : -1;
      values[i] = is_there ? widen(updates[first + at]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2 * updates_ahead; ++i)
      if (places[i] >= 0) sums[places[i] * warp_threads] += values[i];
  }
#pragma unroll 8
  for (int at = 0; at < lines.size; ++at) y[line + at * lines.inner] = narrow<T>(sums[at * warp_threads]);
}

}  // namespace

cudaError_t add_to_lines(Scalar type, const IndexLines& from, void* y, const void* x, const void* updates,
                         cudaStream_t stream) {
  if (from.outer * from.size * from.inner == 0) return cudaSuccess;
  const bool rows = from.inner == 1;
  const int64_t floats = rows ? from.size : from.size * warp_threads;
  const int64_t column_warps = divide_up(from.inner, warp_threads);
  const int64_t warps = std::clamp<int64_t>(max_line_floats / floats, 1, max_warps);
  const auto blocks = static_cast<unsigned>(divide_up(rows ? from.outer : from.outer * column_warps, warps));
  const auto threads = static_cast<unsigned>(warps * warp_threads);
  const auto bytes = static_cast<size_t>(warps * floats) * sizeof(float);
  const Lines lines(from);
  return with_f32_math(type, [&]<typename T>(T*) {
    auto* to = static_cast<T*>(y);
    const auto *base = static_cast<const T*>(x), *added = static_cast<const T*>(updates);
    if (rows)
      add_to_rows_kernel<<<blocks, threads, bytes, stream>>>(to, base, added, lines);
    else
      add_to_columns_kernel<<<blocks, threads, bytes, stream>>>(to, base, added, lines, Divider(column_warps));
  });
}

}  // namespace plimsoll::cuda
