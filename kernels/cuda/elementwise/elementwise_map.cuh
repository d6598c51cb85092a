#pragma once

// y[i] = f(x0[i], x1[i], ...) with broadcasting, 16 bytes per access. A thread loads all its elements before it
// stores the first, so y may be any operand of its own size.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"

#include <utility>

namespace plimsoll::cuda {

// Elements a thread takes at once: 16 bytes of the narrowest type, 8 at most.
template <typename... T>
inline constexpr int map_vector = []() {
  size_t narrowest = 16;
  for (size_t bytes : {sizeof(T)...}) narrowest = bytes < narrowest ? bytes : narrowest;
  return narrowest <= 2 ? 8 : static_cast<int>(16 / narrowest);
}();

// Where an operand stands at a run of consecutive results: it walks along or repeats one element.
template <int length, typename T>
__device__ Vector<T, length> load_run(const T* x, bool walks, int count) {
  Vector<T, length> run;
  if (walks && count == length) return load_vector<length>(x);
  if (!walks) {
    const T one = *x;
#pragma unroll
    for (T& element : run.at) element = one;
    return run;
  }
#pragma unroll
  for (int k = 0; k < length; ++k)
    if (k < count) run.at[k] = x[k];
  return run;
}

template <int length, typename T>
__device__ void store_run(T* y, const Vector<T, length>& run, int count) {
  if (count == length) {
    store_vector(y, run);
    return;
  }
#pragma unroll
  for (int k = 0; k < length; ++k)
    if (k < count) y[k] = run.at[k];
}

// The kernel reads this of a nest: operand offsets at every run of `length` results, and which operands walk.
template <int operands>
struct MapShape {
  int64_t n, runs;
  bool walks[operands];
  DeviceNest<operands> nest;
};

template <int length, typename F, typename Out, typename... In>
__device__ Vector<Out, length> apply_run(const F& f, const Vector<In, length>&... x) {
  Vector<Out, length> y;
#pragma unroll
  for (int k = 0; k < length; ++k) y.at[k] = narrow<Out>(f(widen(x.at[k])...));
  return y;
}

// Runs a thread of a map of one operand takes.
inline constexpr int map_unroll = 2;

// The work of block `block` among those that share a tensor.
template <int length, typename F, typename Out, typename A>
__device__ void map_block(const F& f, int64_t block, int64_t n, Out* y, const A* a) {
  constexpr int unroll = map_unroll;
  const int64_t first = block * block_threads * unroll + threadIdx.x;
  Vector<A, length> runs[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const int64_t at = (first + u * block_threads) * length, left = n - at;
    if (left > 0) runs[u] = load_run<length>(a + at, true, left < length ? static_cast<int>(left) : length);
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const int64_t at = (first + u * block_threads) * length, left = n - at;
    if (left > 0)
      store_run(y + at, apply_run<length, F, Out>(f, runs[u]), left < length ? static_cast<int>(left) : length);
  }
}

template <int length, typename F, typename Out, typename A>
__global__ void __launch_bounds__(block_threads) map_kernel(F f, int64_t n, Out* y, const A* a) {
  map_block<length>(f, blockIdx.x, n, y, a);
}

template <int length, typename F, typename Out, typename A, typename B>
__global__ void __launch_bounds__(block_threads)
    map_kernel(F f, const __grid_constant__ MapShape<2> shape, Out* y, const A* a, const B* b) {
  const int64_t run = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (run >= shape.runs) return;
  int64_t at[2];
  shape.nest.offsets(run, at);
  const int64_t left = shape.n - run * length;
  const int count = left < length ? static_cast<int>(left) : length;
  const auto run_a = load_run<length>(a + at[0], shape.walks[0], count);
  const auto run_b = load_run<length>(b + at[1], shape.walks[1], count);
  store_run(y + run * length, apply_run<length, F, Out>(f, run_a, run_b), count);
}

template <int length, typename F, typename Out, typename A, typename B, typename C>
__global__ void __launch_bounds__(block_threads)
    map_kernel(F f, const __grid_constant__ MapShape<3> shape, Out* y, const A* a, const B* b, const C* c) {
  const int64_t run = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (run >= shape.runs) return;
  int64_t at[3];
  shape.nest.offsets(run, at);
  const int64_t left = shape.n - run * length;
  const int count = left < length ? static_cast<int>(left) : length;
  const auto run_a = load_run<length>(a + at[0], shape.walks[0], count);
  const auto run_b = load_run<length>(b + at[1], shape.walks[1], count);
  const auto run_c = load_run<length>(c + at[2], shape.walks[2], count);
  store_run(y + run * length, apply_run<length, F, Out>(f, run_a, run_b, run_c), count);
}

// ---- The same in 32 bits, whether runs divide lines or not ----

// A nest as lines: its last dimension, of which some follow each other in the dimension before. Operands repeat along
// each or walk; those that have all elements in their order are read as whole runs.
template <int operands>
struct MapLines {
  int n, columns, rows;
  bool is_whole[operands], walks[operands];
  int row_steps[operands];
  Divider32 of_columns, of_rows;
  int outer_rank;  // of the dimensions before, of which one is the usual case
  Divider32 outer_sizes[max_rank];
  int outer_steps[operands][max_rank];

  // Of a collapsed nest of several dimensions, with y in front.
  explicit MapLines(const LoopNest<operands + 1>& nest)
      : n(static_cast<int>(nest.iterations())),
        columns(static_cast<int>(nest.sizes[nest.rank - 1])),
        rows(static_cast<int>(nest.sizes[nest.rank - 2])),
        of_columns(columns),
        of_rows(rows),
        outer_rank(nest.rank - 2) {
    for (int t = 0; t < operands; ++t) {
      const auto& steps = nest.strides[t + 1];
      is_whole[t] = steps == nest.strides[0];
      walks[t] = steps[nest.rank - 1] != 0;
      row_steps[t] = static_cast<int>(steps[nest.rank - 2]);
      for (int d = 0; d < outer_rank; ++d) outer_steps[t][d] = static_cast<int>(steps[d]);
    }
    for (int d = 0; d < outer_rank; ++d) outer_sizes[d] = Divider32(static_cast<int>(nest.sizes[d]));
  }

  // Where rows of the outer dimensions' iteration begin.
  __device__ void find_outer(int outer, int (&at)[operands]) const {
#pragma unroll
    for (int t = 0; t < operands; ++t) at[t] = 0;
#pragma unroll 1
    for (int d = outer_rank - 1; d > 0; --d) {
      int index = outer;
      outer = outer_sizes[d].divide(index);
#pragma unroll
      for (int t = 0; t < operands; ++t) at[t] += index * outer_steps[t][d];
    }
#pragma unroll
    for (int t = 0; t < operands; ++t) at[t] += outer_rank > 0 ? outer * outer_steps[t][0] : 0;
  }
};

// A place in the lines: where an element is, and the beginning of its line in each operand.
template <int operands>
struct LinePlace {
  int column, row, outer;
  int line[operands];

  __device__ LinePlace(const MapLines<operands>& lines, int element) : column(element) {
    row = lines.of_columns.divide(column);
    outer = lines.of_rows.divide(row);
    lines.find_outer(outer, line);
#pragma unroll
    for (int t = 0; t < operands; ++t) line[t] += row * lines.row_steps[t];
  }
  __device__ void go_to_next_line(const MapLines<operands>& lines) {
    column = 0;
    if (++row < lines.rows) {
#pragma unroll
      for (int t = 0; t < operands; ++t) line[t] += lines.row_steps[t];
    } else {
      row = 0;
      lines.find_outer(++outer, line);
    }
  }
  __device__ int at(const MapLines<operands>& lines, int t) const { return line[t] + (lines.walks[t] ? column : 0); }
};

// What a run reads where it is part of one line.
template <int operands>
struct OneLine {
  LinePlace<operands> place;

  __device__ OneLine(const MapLines<operands>& lines, int begin, int) : place(lines, begin) {}
  template <int length, typename T>
  __device__ Vector<T, length> load(const MapLines<operands>& lines, const T* x, int t, int count) const {
    return load_run<length>(x + place.at(lines, t), lines.walks[t], count);
  }
};

// What it reads of up to two lines.
template <int operands>
struct TwoLines {
  int left;                             // elements of the first line
  int first[operands], next[operands];  // where its elements begin, and where those of the next would

  __device__ TwoLines(const MapLines<operands>& lines, int begin, int) {
    LinePlace<operands> place(lines, begin);
    left = lines.columns - place.column;
#pragma unroll
    for (int t = 0; t < operands; ++t) first[t] = place.at(lines, t);
    if (begin + left < lines.n) place.go_to_next_line(lines);
#pragma unroll
    for (int t = 0; t < operands; ++t) next[t] = place.line[t] - (lines.walks[t] ? left : 0);
  }
  template <int length, typename T>
  __device__ Vector<T, length> load(const MapLines<operands>& lines, const T* x, int t, int count) const {
    Vector<T, length> run;
    if (!lines.walks[t]) {
      const T here = x[first[t]], there = x[next[t]];
#pragma unroll
      for (int k = 0; k < length; ++k) run.at[k] = k < left ? here : there;
    } else {
      const T *here = x + first[t], *there = x + next[t];
      if (count == length) {
#pragma unroll
        for (int k = 0; k < length; ++k) run.at[k] = (k < left ? here : there)[k];
      } else {
#pragma unroll
        for (int k = 0; k < length; ++k)
          if (k < count) run.at[k] = (k < left ? here : there)[k];
      }
    }
    return run;
  }
};

// What it reads of any number of lines.
template <int operands, int length>
struct ShortLines {
  int places[operands][length];

  __device__ ShortLines(const MapLines<operands>& lines, int begin, int count) {
    LinePlace<operands> place(lines, begin);
#pragma unroll
    for (int k = 0; k < length; ++k) {
      if (k >= count) break;
#pragma unroll
      for (int t = 0; t < operands; ++t) places[t][k] = place.at(lines, t);
      if (++place.column == lines.columns && k + 1 < count) place.go_to_next_line(lines);
    }
  }
  template <int, typename T>
  __device__ Vector<T, length> load(const MapLines<operands>&, const T* x, int t, int count) const {
    Vector<T, length> run;
#pragma unroll
    for (int k = 0; k < length; ++k)
      if (k < count) run.at[k] = x[places[t][k]];
    return run;
  }
};

template <typename Lines, int length, typename F, typename Out, typename... In, size_t... t>
__device__ void map_lines(const F& f, const MapLines<sizeof...(In)>& lines, std::index_sequence<t...>, Out* y,
                          const In*... x) {
  const int begin = (static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x)) * length;
  const int left = lines.n - begin;
  if (left <= 0) return;
  const int count = left < length ? left : length;
  const Lines here(lines, begin, count);
  const auto load = [&](int operand, const auto* from) {
    return lines.is_whole[operand] ? load_run<length>(from + begin, true, count)
                                   : here.template load<length>(lines, from, operand, count);
  };
  store_run(y + begin, apply_run<length, F, Out>(f, load(t, x)...), count);
}

template <typename Lines, int length, typename F, typename Out, typename... In>
__global__ void __launch_bounds__(block_threads)
    map_lines_kernel(F f, const __grid_constant__ MapLines<sizeof...(In)> lines, Out* y, const In*... x) {
  map_lines<Lines, length>(f, lines, std::index_sequence_for<In...>(), y, x...);
}

// ---- Launches ----

// The nest cut into runs of `length` along its last dimension. Only a nest of one dimension may end in a short run.
template <int operands>
MapShape<operands> map_shape(LoopNest<operands + 1> nest, int length) {
  MapShape<operands> shape;
  const int last = nest.rank - 1;
  shape.n = nest.iterations();
  nest.sizes[last] = (nest.sizes[last] + length - 1) / length;
  shape.runs = nest.iterations();
  for (int t = 0; t < operands; ++t) {
    shape.walks[t] = nest.strides[t + 1][last] != 0;
    nest.strides[t + 1][last] *= length;
  }
  shape.nest = DeviceNest<operands>(nest, 1);
  return shape;
}

// Whether every run of `length` results is aligned in all operands that walk along it.
template <int N>
bool runs_align(const LoopNest<N>& nest, int length) {
  if (nest.rank == 1) return true;
  const int last = nest.rank - 1;
  if (nest.sizes[last] % length != 0) return false;
  for (int t = 1; t < N; ++t)
    for (int d = 0; d < last; ++d)
      if (nest.strides[t][last] != 0 && nest.strides[t][d] % length != 0) return false;
  return true;
}

// y, x and the like of n elements each.
template <typename F, typename Out, typename In>
cudaError_t map(F f, int64_t n, Out* y, const In* x, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  constexpr int length = map_vector<Out, In>;
  map_kernel<length>
      <<<blocks_for(n, int64_t{map_unroll} * block_threads * length), block_threads, 0, stream>>>(f, n, y, x);
  return cudaGetLastError();
}

template <typename F, typename Out, typename A, typename B>
cudaError_t map_pairs(F f, int64_t n, Out* y, const A* a, const B* b, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  constexpr int length = map_vector<Out, A, B>;
  LoopNest<3> nest;
  nest.add_dimension(n, {1, 1, 1});
  const MapShape<2> shape = map_shape<2>(nest, length);
  map_kernel<length><<<blocks_for(shape.runs), block_threads, 0, stream>>>(f, shape, y, a, b);
  return cudaGetLastError();
}

// Tensors of the nest: y, dense, then the operands, which broadcast to it.
template <typename F, typename Out, typename... In>
cudaError_t map_broadcast(F f, const LoopNest<1 + sizeof...(In)>& full, cudaStream_t stream, Out* y, const In*... x) {
  if (full.iterations() == 0) return cudaSuccess;
  const auto nest = collapse(full);
  constexpr int length = map_vector<Out, In...>;
  constexpr int operands = sizeof...(In);
  const bool in_vectors = runs_align(nest, length);
  if (nest.rank > 1 && nest.iterations() <= INT32_MAX - block_threads * length) {
    const MapLines<operands> lines(nest);
    const unsigned blocks = blocks_for(lines.n, int64_t{block_threads} * length);
    if (in_vectors)
      map_lines_kernel<OneLine<operands>, length><<<blocks, block_threads, 0, stream>>>(f, lines, y, x...);
    else if (lines.columns >= length)
      map_lines_kernel<TwoLines<operands>, length><<<blocks, block_threads, 0, stream>>>(f, lines, y, x...);
    else
      map_lines_kernel<ShortLines<operands, length>, length><<<blocks, block_threads, 0, stream>>>(f, lines, y, x...);
    return cudaGetLastError();
  }
  const MapShape<operands> shape = map_shape<operands>(nest, in_vectors ? length : 1);
  const unsigned blocks = blocks_for(shape.runs);
  if (in_vectors)
    map_kernel<length><<<blocks, block_threads, 0, stream>>>(f, shape, y, x...);
  else
    map_kernel<1><<<blocks, block_threads, 0, stream>>>(f, shape, y, x...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
