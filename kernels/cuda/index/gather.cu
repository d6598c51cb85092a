#include "kernels/cuda/index/index.cuh"

#include <algorithm>

// Serves gather, gather_elements, gather_nd and one_hot. The result is written once, and what it picks is read once.
// Ops that pick elements by index: a thread moves one element, or up to 16 bytes of a run of them.

namespace plimsoll::cuda {
namespace {

// Of a larger result no reader would find much in L2 whatever the order of eviction: there it leaves L2 first, and more
// of the table stays.
constexpr int64_t largest_kept_bytes = int64_t{32} << 20;

struct Rows {
  Indices indices;
  int64_t size, units_per_row;
  Divider rows, units;
};

// What is written so leaves L2 first.
template <typename Unit>
__device__ void store_streaming(Unit* to, const Unit& unit) {
  if constexpr (sizeof(Unit) == 16)
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&unit));
  else if constexpr (sizeof(Unit) == 8)
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&unit));
  else
    __stcs(to, unit);
}

template <bool streams, typename Unit>
__global__ void __launch_bounds__(block_threads)
    gather_rows_kernel(const __grid_constant__ Rows shape, int64_t n, Unit* y, const Unit* x) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t unit = i;
  int64_t row = shape.units.divide(unit);
  const int64_t outer = shape.rows.divide(row);
  const Unit picked = x[(outer * shape.size + index_at(shape.indices, row, shape.size)) * shape.units_per_row + unit];
  if (streams)
    store_streaming(y + i, picked);
  else
    y[i] = picked;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    gather_elements_kernel(const __grid_constant__ ElementPlaces places, int64_t n, T* y, const T* x) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i < n) y[i] = x[places(i)];
}

// A thread has `length` neighbours of one line.
template <typename T, int length>
__global__ void __launch_bounds__(block_threads)
    gather_lines_kernel(T* y, const T* __restrict__ x, Indices indices, Divider units_per_line, Divider units_of_sets,
                        int64_t size, int64_t n) {
  const int64_t unit = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (unit >= n) return;
  int64_t in_line = unit, in_sets = unit;
  const T* line = x + units_per_line.divide(in_line) * size;
  units_of_sets.divide(in_sets);
  int places[length];
  load_places(indices, in_sets * length, size, places);
  Vector<T, length> picked;
#pragma unroll
  for (int i = 0; i < length; ++i) picked.at[i] = line[places[i]];
  store_vector(y + unit * length, picked);
}

// Lines with the same indices: a thread has `length` neighbours of some lines, one after the other, for which it reads
// their places once.
template <typename T, int length>
__global__ void __launch_bounds__(block_threads)
    gather_shared_kernel(T* __restrict__ y, const T* __restrict__ x, Indices indices, Divider32 units_per_line,
                         int units, int64_t size, int64_t outer, int lines) {
  int32_t unit = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  const int64_t first = int64_t{units_per_line.divide(unit)} * lines;
  if (first >= outer) return;
  int places[length];
  load_places(indices, int64_t{unit} * length, size, places);
  const int64_t end = first + lines < outer ? first + lines : outer;
#pragma unroll 4
  for (int64_t line = first; line < end; ++line) {
    Vector<T, length> picked;
#pragma unroll
    for (int i = 0; i < length; ++i) picked.at[i] = x[line * size + places[i]];
    store_vector(y + (line * units + unit) * length, picked);
  }
}

template <typename Unit>
__global__ void __launch_bounds__(block_threads)
    gather_tuples_kernel(const __grid_constant__ TuplePlaces places, Divider units, int64_t n, int unit_elements,
                         Unit* y, const Unit* x) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t unit = i;
  const int64_t tuple = units.divide(unit);
  y[i] = x[places(tuple) / unit_elements + unit];
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    one_hot_kernel(T* y, Indices indices, const T* on_off, Divider depth, Divider inner, int64_t inner_size,
                   int64_t length, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t place = i;
  int64_t k = inner.divide(place);
  const int64_t outer = depth.divide(k);
  int64_t index = load_any<int64_t>({indices.data, indices.type}, outer * inner_size + place);
  if (index < 0) index += length;
  y[i] = on_off[index == k ? 1 : 0];
}

}  // namespace

namespace {

constexpr int64_t filling_threads = 132 * 2048;  // of a card of 132 multiprocessors

// Rows of one element, where some lines are left for each thread. Neighbouring threads read neighbouring indices, which
// often name neighbours: with 16 bytes a thread in place of 4, the first-level cache bound them.
bool takes_shared_lines(const void* y, const Indices& indices, int64_t outer, int64_t size, int64_t count,
                        int64_t inner_bytes) {
  const auto is_word = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return (inner_bytes == 2 || inner_bytes == 4) && count % (4 / inner_bytes) == 0 && is_word(y) &&
         is_word(indices.data) && size <= INT32_MAX && outer * count <= INT32_MAX &&
         outer * count * inner_bytes / 4 >= 2 * filling_threads && outer >= 2;
}

cudaError_t gather_shared(void* y, const void* x, const Indices& indices, int64_t outer, int64_t size, int64_t count,
                          int element_bytes, cudaStream_t stream) {
  constexpr int64_t most_lines = 8;
  const auto launch = [&]<typename T>(T* to) {
    constexpr int length = 4 / static_cast<int>(sizeof(T));
    const int64_t units = count / length;
    const int64_t lines = std::clamp<int64_t>(outer * units / filling_threads, 1, most_lines);
    gather_shared_kernel<T, length><<<blocks_for(divide_up(outer, lines) * units), block_threads, 0, stream>>>(
        to, static_cast<const T*>(x), indices, Divider32(static_cast<int32_t>(units)), static_cast<int>(units), size,
        outer, static_cast<int>(lines));
    return cudaGetLastError();
  };
  return element_bytes == 2 ? launch(static_cast<uint16_t*>(y)) : launch(static_cast<uint32_t*>(y));
}

}  // namespace

cudaError_t gather_rows(void* y, const void* x, const Indices& indices, int64_t outer, int64_t size, int64_t count,
                        int64_t inner_bytes, cudaStream_t stream) {
  if (outer * count * inner_bytes == 0) return cudaSuccess;
  if (takes_shared_lines(y, indices, outer, size, count, inner_bytes))
    return gather_shared(y, x, indices, outer, size, count, static_cast<int>(inner_bytes), stream);
  const int bytes = unit_of_run(inner_bytes);
  const int64_t units = inner_bytes / bytes, n = outer * count * units;
  return with_unit_bytes(bytes, [&]<typename Unit>(Unit*) {
    const Rows shape{indices, size, units, Divider(count), Divider(units)};
    const auto kernel =
        n * bytes > largest_kept_bytes ? gather_rows_kernel<true, Unit> : gather_rows_kernel<false, Unit>;
    kernel<<<blocks_for(n), block_threads, 0, stream>>>(shape, n, static_cast<Unit*>(y), static_cast<const Unit*>(x));
  });
}

cudaError_t gather_elements(const ElementIndices& places, void* y, const void* x, int element_bytes,
                            cudaStream_t stream) {
  const int64_t n = places.nest.iterations();
  if (n == 0) return cudaSuccess;
  return with_element_bytes(element_bytes, [&]<typename T>(T*) {
    gather_elements_kernel<<<blocks_for(n), block_threads, 0, stream>>>(ElementPlaces(places), n, static_cast<T*>(y),
                                                                        static_cast<const T*>(x));
  });
}

cudaError_t gather_lines(const IndexLines& lines, void* y, const void* x, int element_bytes, cudaStream_t stream) {
  const int64_t n = lines.outer * lines.count;
  if (n == 0) return cudaSuccess;
  const int full = 16 / element_bytes;
  const bool whole = lines.count % full == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(lines.indices.data) % 16 == 0;
  auto launch = [&]<typename T, int length>(T* to, std::integral_constant<int, length>) {
    const int64_t units = lines.count / length;
    gather_lines_kernel<T, length><<<blocks_for(n / length), block_threads, 0, stream>>>(
        to, static_cast<const T*>(x), lines.indices, Divider(units), Divider(lines.sets * units), lines.size,
        n / length);
  };
  return with_element_bytes(element_bytes, [&]<typename T>(T*) {
    auto* to = static_cast<T*>(y);
    if (whole)
      launch(to, std::integral_constant<int, 16 / static_cast<int>(sizeof(T))>());
    else
      launch(to, std::integral_constant<int, 1>());
  });
}

cudaError_t gather_tuples(const TupleIndices& places, void* y, const void* x, int element_bytes, cudaStream_t stream) {
  if (places.tuples * places.count == 0) return cudaSuccess;
  // Every stride of the coordinates is a whole number of runs.
  const int bytes = unit_of_run(places.count * element_bytes), unit_elements = bytes / element_bytes;
  const int64_t units = places.count / unit_elements, n = places.tuples * units;
  return with_unit_bytes(bytes, [&]<typename Unit>(Unit*) {
    gather_tuples_kernel<<<blocks_for(n), block_threads, 0, stream>>>(
        TuplePlaces(places), Divider(units), n, unit_elements, static_cast<Unit*>(y), static_cast<const Unit*>(x));
  });
}

cudaError_t one_hot(void* y, const Indices& indices, const void* on_off, int64_t outer, int64_t depth, int64_t inner,
                    int element_bytes, cudaStream_t stream) {
  const int64_t n = outer * depth * inner;
  if (n == 0) return cudaSuccess;
  return with_element_bytes(element_bytes, [&]<typename T>(T*) {
    one_hot_kernel<<<blocks_for(n), block_threads, 0, stream>>>(
        static_cast<T*>(y), indices, static_cast<const T*>(on_off), Divider(depth), Divider(inner), inner, depth, n);
  });
}

}  // namespace plimsoll::cuda
