#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/index_workspace.h"

#include <algorithm>

// Serves gather_elements_grad where many slices share their indices. The updates of each element are found once for all
// slices; then each element of y picks its own, and nothing waits for other lanes. Reads updates once and writes y
// once.

namespace plimsoll::cuda {
namespace {

constexpr int max_warps = 8;
constexpr int slices_per_warp = shared_slices_per_warp;

// A warp for each set: starts [sets, size + 1], and the updates, [sets, count], sorted by element and within each in
// their order.
__global__ void __launch_bounds__(warp_threads)
    order_updates_kernel(int* starts, int* order, Indices indices, int size, int count) {
  extern __shared__ int next[];  // how many updates an element has, then the place of its next one
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * count;
  starts += int64_t{blockIdx.x} * (size + 1);
  order += first;
  for (int at = lane; at <= size; at += warp_threads) next[at] = 0;
  __syncwarp();
  auto element_of = [&](int update) {
    return update < count ? static_cast<int>(index_at(indices, first + update, size)) : -1;
  };
  for (int begin = 0; begin < count; begin += warp_threads) {
    const int element = element_of(begin + lane);
    const unsigned equal = __match_any_sync(whole_warp, element);
    if (element >= 0 && lane == __ffs(equal) - 1) next[element] += __popc(equal);
    __syncwarp();
  }
  int before_all = 0;
  for (int begin = 0; begin <= size; begin += warp_threads) {
    const int at = begin + lane, own = at <= size ? next[at] : 0;
    int sum = own;
#pragma unroll
    for (int distance = 1; distance < warp_threads; distance *= 2) {
      const int lower = __shfl_up_sync(whole_warp, sum, distance);
      if (lane >= distance) sum += lower;
    }
    if (at <= size) starts[at] = next[at] = before_all + sum - own;
    before_all += __shfl_sync(whole_warp, sum, warp_threads - 1);
  }
  __syncwarp();
  for (int begin = 0; begin < count; begin += warp_threads) {
    const int element = element_of(begin + lane);
    const unsigned equal = __match_any_sync(whole_warp, element);
    const int before = __popc(equal & ((1u << lane) - 1));
    const int place = element >= 0 ? next[element] + before : 0;
    __syncwarp();
    if (element >= 0) {
      order[place] = begin + lane;
      if (before == __popc(equal) - 1) next[element] = place + 1;
    }
    __syncwarp();
  }
}

struct SharedLines {
  const int *starts, *order;
  int64_t outer, sets;
  int size, count, padded;  // updates of a slice, and the same in whole 16-byte words
};

// Block b has set b % sets, and each of its warps some slices of that set: what the tables say is read once for all of
// them. A thread has `pair` neighbours of y.
template <typename T, int pair>
__global__ void __launch_bounds__(max_warps* warp_threads)
    add_in_order_kernel(T* y, const T* x, const T* __restrict__ updates, const __grid_constant__ SharedLines lines,
                        Divider sets) {
  extern __shared__ uint4 shared[];
  constexpr int n = vector_length<T>;
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  T* of_warps = reinterpret_cast<T*>(shared);
  T* values = of_warps + warp * slices_per_warp * lines.padded;
  int* starts = reinterpret_cast<int*>(of_warps + warps * slices_per_warp * lines.padded);
  int* order = starts + lines.size + 1;
  int64_t set = blockIdx.x;
  const int64_t first = (sets.divide(set) * warps + warp) * slices_per_warp;
  auto slice_at = [&](int i) { return (first + i) * lines.sets + set; };
  int slices = 0;
  while (slices < slices_per_warp && slice_at(slices) < lines.outer) ++slices;
  const bool whole = lines.count % n == 0 && reinterpret_cast<uintptr_t>(updates) % 16 == 0;
  for (int i = 0; i < slices; ++i) {
    const T* from = updates + slice_at(i) * lines.count;
    T* to = values + i * lines.padded;
    for (int at = whole ? lane * n : lines.count; at < lines.count; at += warp_threads * n)
      *reinterpret_cast<Vector<T, n>*>(to + at) = load_vector<n>(from + at);
    for (int at = whole ? lines.count : lane; at < lines.count; at += warp_threads) to[at] = from[at];
  }
  for (int i = static_cast<int>(threadIdx.x); i <= lines.size; i += static_cast<int>(blockDim.x))
    starts[i] = lines.starts[set * (lines.size + 1) + i];
  for (int i = static_cast<int>(threadIdx.x); i < lines.count; i += static_cast<int>(blockDim.x))
    order[i] = lines.order[set * lines.count + i];
  __syncthreads();
  for (int at = lane * pair; at < lines.size; at += warp_threads * pair) {
    float sums[slices_per_warp][pair];
#pragma unroll
    for (int i = 0; i < slices_per_warp; ++i)
#pragma unroll
      for (int k = 0; k < pair; ++k)
        sums[i][k] = x == nullptr || i >= slices ? 0.0f : widen(x[slice_at(i) * lines.size + at + k]);
#pragma unroll
    for (int k = 0; k < pair; ++k)
      for (int update = starts[at + k]; update < starts[at + k + 1]; ++update) {
        const T* value = values + order[update];
#pragma unroll
        for (int i = 0; i < slices_per_warp; ++i)
          if (i < slices) sums[i][k] += widen(value[i * lines.padded]);
      }
#pragma unroll
    for (int i = 0; i < slices_per_warp; ++i) {
      if (i >= slices) break;
      Vector<T, pair> rounded;
#pragma unroll
      for (int k = 0; k < pair; ++k) rounded.at[k] = narrow<T>(sums[i][k]);
      store_vector(y + slice_at(i) * lines.size + at, rounded);
    }
  }
}

}  // namespace

cudaError_t add_to_shared_lines(Scalar type, const IndexLines& lines, void* y, const void* x, const void* updates,
                                void* workspace, cudaStream_t stream) {
  if (lines.outer * lines.size == 0) return cudaSuccess;
  const auto size = static_cast<int>(lines.size), count = static_cast<int>(lines.count);
  int* starts = static_cast<int*>(workspace);
  int* order = reinterpret_cast<int*>(static_cast<char*>(workspace) + array_bytes(4 * lines.sets * (lines.size + 1)));
  order_updates_kernel<<<static_cast<unsigned>(lines.sets), warp_threads, (size + 1) * sizeof(int), stream>>>(
      starts, order, lines.indices, size, count);
  if (const cudaError_t error = cudaGetLastError()) return error;
  const int64_t slices = divide_up(lines.outer / lines.sets, slices_per_warp), padded = round_up(lines.count, 8);
  return with_f32_math(type, [&]<typename T>(T*) {
    constexpr int pair = 4 / static_cast<int>(sizeof(T));
    const int64_t tables = (lines.size + 1 + lines.count) * 4;
    const int64_t of_warp = std::max<int64_t>(slices_per_warp * padded * static_cast<int64_t>(sizeof(T)), 1);
    const int64_t warps = std::clamp<int64_t>(std::min((max_line_floats * 4 - tables) / of_warp, slices), 1, max_warps);
    const auto blocks = static_cast<unsigned>(divide_up(slices, warps) * lines.sets);
    const auto threads = static_cast<unsigned>(warps * warp_threads);
    const auto bytes = static_cast<size_t>(tables + warps * of_warp);
    const SharedLines shared{starts, order, lines.outer, lines.sets, size, count, static_cast<int>(padded)};
    auto* to = static_cast<T*>(y);
    const auto *base = static_cast<const T*>(x), *added = static_cast<const T*>(updates);
    if (size % pair == 0 && reinterpret_cast<uintptr_t>(y) % 4 == 0)
      add_in_order_kernel<T, pair><<<blocks, threads, bytes, stream>>>(to, base, added, shared, Divider(lines.sets));
    else
      add_in_order_kernel<T, 1><<<blocks, threads, bytes, stream>>>(to, base, added, shared, Divider(lines.sets));
  });
}

}  // namespace plimsoll::cuda
