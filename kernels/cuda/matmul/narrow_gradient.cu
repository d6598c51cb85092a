#include "kernels/cuda/matmul/narrow_product.h"

#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/matmul/narrow_tiles.cuh"

// Serves linear_dw ("narrow"). Each block goes over tiles of rows of x and dy, of which the next one is on its way to
// shared memory, and sums in registers: a thread has some columns of the wide side by all of the narrow one. The sums
// of blocks are added in a second stage, in a fixed order. Reads x and dy once.

namespace plimsoll::cuda {
namespace {

template <typename T>
struct Gradient {
  const T *wide, *narrow;
  float* partials;
  int64_t rows;
  int wide_columns, narrow_columns, tile_rows, across;
  int wide_step, narrow_step;  // of dw's elements
  bool sums_wide, sums_narrow, is_aligned;

  __device__ int part_floats() const {
    return wide_columns * narrow_columns + (sums_wide ? wide_columns : sums_narrow ? narrow_columns : 0);
  }
};

// Adds what the threads of a block have of one wide column each, in a fixed order, and gives it to store(lane, i,
// total). of_groups has room for `few` floats of each thread.
template <int few, typename Store>
__device__ void sum_of_block(float (&sums)[few], float* of_groups, int across, Store store) {
  constexpr int warps = block_threads / warp_threads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % across;
  const int groups = across < warp_threads ? warps : block_threads / across;
  for (int distance = across; distance < warp_threads; distance *= 2)
#pragma unroll
    for (int i = 0; i < few; ++i) sums[i] += __shfl_xor_sync(whole_warp, sums[i], distance);
  __syncthreads();
  const int group = across < warp_threads ? thread / warp_threads : thread / across;
  if (across >= warp_threads || thread % warp_threads < across)
#pragma unroll
    for (int i = 0; i < few; ++i) of_groups[(group * few + i) * across + lane] = sums[i];
  __syncthreads();
  for (int at = thread; at < across * few; at += block_threads) {
    float total = 0;
    for (int g = 0; g < groups; ++g) total += of_groups[g * few * across + at];
    store(at % across, at / across, total);
  }
}

template <typename T, int few, int held>
__global__ void __launch_bounds__(block_threads, resident_blocks<few>) parts_kernel(Gradient<T> g) {
  extern __shared__ uint4 shared_words[];
  const int wide_tile = g.tile_rows * g.wide_columns, narrow_tile = g.tile_rows * g.narrow_columns;
  T* const wide = reinterpret_cast<T*>(shared_words);
  T* const narrow = wide + 2 * wide_tile;
  const int64_t tiles = (g.rows + g.tile_rows - 1) / g.tile_rows;
  const auto rows_of = [&](int64_t tile) {
    return static_cast<int>(min(g.rows - tile * g.tile_rows, int64_t{g.tile_rows}));
  };
  const auto fetch = [&](int64_t tile, int place) {
    if (tile < tiles) {
      fetch_run(wide + place * wide_tile, g.wide + tile * wide_tile, rows_of(tile) * g.wide_columns, g.is_aligned);
      fetch_run(narrow + place * narrow_tile, g.narrow + tile * narrow_tile, rows_of(tile) * g.narrow_columns,
                g.is_aligned);
    }
    commit_copies();
  };
  const int lane = static_cast<int>(threadIdx.x) % g.across, team = static_cast<int>(threadIdx.x) / g.across;
  const int teams = block_threads / g.across;
  const bool has_whole_row = g.wide_columns == held;
  float sums[held][few] = {}, of_wide[held] = {}, of_narrow[few] = {};
  int place = 0;
  fetch(blockIdx.x, place);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, place ^= 1) {
    const int rows = rows_of(tile);
    fetch(tile + gridDim.x, place ^ 1);
    wait_for_copies<1>();
    __syncthreads();
    const T *left = wide + place * wide_tile, *right = narrow + place * narrow_tile;
#pragma unroll 2
    for (int row = team; row < rows; row += teams) {
      float values[few], across[held];
      load_row(values, right + row * g.narrow_columns, g.narrow_columns);
      const T* from = left + row * g.wide_columns;
      if (has_whole_row)
        load_row(across, from, held);
      else
#pragma unroll
        for (int j = 0; j < held; ++j)
          across[j] = lane + j * g.across < g.wide_columns ? widen(from[lane + j * g.across]) : 0.0f;
#pragma unroll
      for (int j = 0; j < held; ++j)
#pragma unroll
        for (int i = 0; i < few; ++i) sums[j][i] = fmaf(across[j], values[i], sums[j][i]);
      if (g.sums_wide)
#pragma unroll
        for (int j = 0; j < held; ++j) of_wide[j] += across[j];
      if (g.sums_narrow)
#pragma unroll
        for (int i = 0; i < few; ++i) of_narrow[i] += values[i];
    }
    __syncthreads();
  }
  float* const of_groups = reinterpret_cast<float*>(shared_words);  // tiles are no longer needed
  float* const part = g.partials + int64_t{blockIdx.x} * g.part_floats();
  float* const bias = part + g.wide_columns * g.narrow_columns;
#pragma unroll
  for (int j = 0; j < held; ++j) {
    sum_of_block(sums[j], of_groups, g.across, [&](int of_lane, int i, float total) {
      const int column = of_lane + j * g.across;
      if (column < g.wide_columns && i < g.narrow_columns) part[column * g.wide_step + i * g.narrow_step] = total;
    });
    float one[1] = {of_wide[j]};
    if (g.sums_wide)
      sum_of_block(one, of_groups, g.across, [&](int of_lane, int, float total) {
        if (of_lane + j * g.across < g.wide_columns) bias[of_lane + j * g.across] = total;
      });
  }
  if (g.sums_narrow)
    sum_of_block(of_narrow, of_groups, g.across, [&](int of_lane, int i, float total) {
      if (of_lane == 0 && i < g.narrow_columns) bias[i] = total;
    });
}

template <typename D>
__global__ void __launch_bounds__(combine_threads)
    finish_kernel(const float* partials, int64_t parts, int64_t floats, int64_t weights, int across, const D* addend,
                  D* dw, D* dbias) {
  combine_partials(partials, parts, floats, across, Add(), 0.0f, [&](int64_t at, float total) {
    if (at >= weights)
      dbias[at - weights] = narrow<D>(total);
    else
      dw[at] = narrow<D>(addend ? total + widen(addend[at]) : total);
  });
}

template <typename T>
cudaError_t launch_parts(const NarrowGradientCall& c, cudaStream_t stream) {
  const NarrowSizes& sizes = c.sizes;
  const bool x_is_wide = sizes.inner > sizes.columns;
  const int x_step = c.transpose_w ? 1 : static_cast<int>(sizes.columns),
            dy_step = c.transpose_w ? static_cast<int>(sizes.inner) : 1;
  Gradient<T> g{.wide = static_cast<const T*>(x_is_wide ? c.x : c.dy),
                .narrow = static_cast<const T*>(x_is_wide ? c.dy : c.x),
                .partials = c.workspace,
                .rows = sizes.rows,
                .wide_columns = static_cast<int>(sizes.wide()),
                .narrow_columns = static_cast<int>(sizes.narrow()),
                .tile_rows = static_cast<int>(sizes.gradient_tile_rows()),
                .across = 1,
                .wide_step = x_is_wide ? x_step : dy_step,
                .narrow_step = x_is_wide ? dy_step : x_step,
                .sums_wide = c.dbias && !x_is_wide,
                .sums_narrow = c.dbias && x_is_wide,
                .is_aligned = is_at_16_bytes(c.x) && is_at_16_bytes(c.dy)};
  const auto blocks = static_cast<unsigned>(sizes.gradient_parts());
  const int64_t tile_bytes = g.tile_rows * sizes.gradient_tile_bytes_of_row();
  with_narrow_rows(sizes.narrow(), sizes.wide(), [&](auto few, auto held) {
    g.across = threads_across(sizes.wide(), held);
    constexpr int64_t sum_bytes = block_threads * few * sizeof(float);
    const auto shared_bytes = static_cast<size_t>(std::max(tile_bytes, sum_bytes));
    parts_kernel<T, few, held><<<blocks, block_threads, shared_bytes, stream>>>(g);
  });
  return cudaGetLastError();
}

template <typename D>
cudaError_t launch_finish(const NarrowGradientCall& c, cudaStream_t stream) {
  const int64_t parts = c.sizes.gradient_parts(), weights = c.sizes.inner * c.sizes.columns,
                floats = weights + (c.dbias ? c.sizes.columns : 0);
  finish_kernel<D><<<combining_blocks(parts, floats), combine_threads, 0, stream>>>(
      c.workspace, parts, floats, weights, combined_columns(parts), static_cast<const D*>(c.addend),
      static_cast<D*>(c.dw), static_cast<D*>(c.dbias));
  return cudaGetLastError();
}

}  // namespace

cudaError_t narrow_gradient(const NarrowGradientCall& call, cudaStream_t stream) {
  const cudaError_t parts = with_f32_math(call.type, [&]<typename T>(T*) { return launch_parts<T>(call, stream); });
  if (parts != cudaSuccess) return parts;
  return with_f32_math(call.dw_type, [&]<typename D>(D*) { return launch_finish<D>(call, stream); });
}

}  // namespace plimsoll::cuda
