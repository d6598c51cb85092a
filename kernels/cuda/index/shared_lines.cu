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
constexpr int64_t slices_per_warp = 4;

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
  int size, count;
};

// Blocks of a set come one after the other: block b has set b % sets. A warp has slices of that set, and a thread
// `pair` neighbours of y.
template <typename T, int pair>
__global__ void __launch_bounds__(max_warps* warp_threads)
    add_in_order_kernel(T* y, const T* x, const T* __restrict__ updates, const __grid_constant__ SharedLines lines,
                        Divider sets) {
  extern __shared__ int shared[];
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  int *starts = shared, *order = starts + lines.size + 1;
  float* values = reinterpret_cast<float*>(order + lines.count) + int64_t{warp} * lines.count;
  int64_t set = blockIdx.x;
  const int64_t block = sets.divide(set);
  for (int i = static_cast<int>(threadIdx.x); i <= lines.size; i += static_cast<int>(blockDim.x))
    starts[i] = lines.starts[set * (lines.size + 1) + i];
  for (int i = static_cast<int>(threadIdx.x); i < lines.count; i += static_cast<int>(blockDim.x))
    order[i] = lines.order[set * lines.count + i];
  __syncthreads();
  for (int64_t i = 0; i < slices_per_warp; ++i) {
    const int64_t slice = ((block * slices_per_warp + i) * warps + warp) * lines.sets + set;
    if (slice >= lines.outer) return;
    for_row(updates + slice * lines.count, lines.count, lane, warp_threads, [&](int64_t at, const auto& loaded) {
      constexpr int n = sizeof(loaded.at) / sizeof(T);
#pragma unroll
      for (int k = 0; k < n; ++k) values[at + k] = widen(loaded.at[k]);
    });
    __syncwarp();
    for (int at = lane * pair; at < lines.size; at += warp_threads * pair) {
      const int64_t to = slice * lines.size + at;
      Vector<T, pair> sums;
#pragma unroll
      for (int k = 0; k < pair; ++k) {
        float sum = x == nullptr ? 0.0f : widen(x[to + k]);
        for (int update = starts[at + k]; update < starts[at + k + 1]; ++update) sum += values[order[update]];
        sums.at[k] = narrow<T>(sum);
      }
      store_vector(y + to, sums);
    }
    __syncwarp();
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
  const int64_t slices = lines.outer / lines.sets, tables = lines.size + 1 + lines.count;
  const int64_t warps = std::clamp<int64_t>(
      std::min((max_line_floats - tables) / std::max<int64_t>(lines.count, 1), divide_up(slices, slices_per_warp)), 1,
      max_warps);
  const auto blocks = static_cast<unsigned>(divide_up(slices, warps * slices_per_warp) * lines.sets);
  const auto threads = static_cast<unsigned>(warps * warp_threads);
  const auto bytes = static_cast<size_t>(tables + warps * lines.count) * sizeof(float);
  const SharedLines shared{starts, order, lines.outer, lines.sets, size, count};
  return with_f32_math(type, [&]<typename T>(T*) {
    constexpr int pair = 4 / static_cast<int>(sizeof(T));
    auto* to = static_cast<T*>(y);
    const auto *base = static_cast<const T*>(x), *added = static_cast<const T*>(updates);
    if (size % pair == 0 && reinterpret_cast<uintptr_t>(y) % 4 == 0)
      add_in_order_kernel<T, pair><<<blocks, threads, bytes, stream>>>(to, base, added, shared, Divider(lines.sets));
    else
      add_in_order_kernel<T, 1><<<blocks, threads, bytes, stream>>>(to, base, added, shared, Divider(lines.sets));
  });
}

}  // namespace plimsoll::cuda
