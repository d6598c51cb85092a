#pragma once

// y[i] = f(x0[i], x1[i], ...) with broadcasting, 16 bytes per access. A thread loads all its elements before it
// stores the first, so y may be any operand of its own size.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"

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
#pragma unroll
  for (int k = 0; k < length; ++k)
    if (k < count) run.at[k] = x[walks ? k : 0];
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
  const MapShape<operands> shape = map_shape<operands>(nest, in_vectors ? length : 1);
  const unsigned blocks = blocks_for(shape.runs);
  if (in_vectors)
    map_kernel<length><<<blocks, block_threads, 0, stream>>>(f, shape, y, x...);
  else
    map_kernel<1><<<blocks, block_threads, 0, stream>>>(f, shape, y, x...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
