#include "kernels/cuda/matmul/narrow_product.h"

#include "kernels/cuda/matmul/narrow_tiles.cuh"

// Serves linear ("narrow"). A block keeps its part of w in registers and goes over tiles of rows: the next tile is on
// its way to shared memory while one is multiplied, and y goes out from there, too. Reads x once and writes y once;
// sums are f32 and begin with bias and addend.

namespace plimsoll::cuda {
namespace {

template <typename T>
struct Product {
  const T *x, *w, *bias, *addend;
  T* y;
  int64_t rows;
  int inner, columns, tile_rows, across;
  bool transpose_w, x_is_aligned, y_is_aligned;

  __device__ float weight(int k, int column) const {
    if (k >= inner || column >= columns) return 0;
    return widen(w[transpose_w ? column * inner + k : k * columns + column]);
  }
  __device__ float bias_of(int column) const { return bias && column < columns ? widen(bias[column]) : 0.0f; }
};

// Calls multiply(rows of x, rows of y, number of rows) for each tile of this block; where there is an addend, y has it
// before.
template <typename T, typename Multiply>
__device__ void for_tiles(const Product<T>& p, Multiply multiply) {
  extern __shared__ uint4 shared_words[];
  T* const x = reinterpret_cast<T*>(shared_words);
  T* const y = x + 2 * p.tile_rows * p.inner;
  const int64_t tiles = (p.rows + p.tile_rows - 1) / p.tile_rows;
  const auto rows_of = [&](int64_t tile) {
    return static_cast<int>(min(p.rows - tile * p.tile_rows, int64_t{p.tile_rows}));
  };
  const auto fetch = [&](int64_t tile, int place) {
    if (tile < tiles)
      fetch_run(x + place * p.tile_rows * p.inner, p.x + tile * p.tile_rows * p.inner, rows_of(tile) * p.inner,
                p.x_is_aligned);
    commit_copies();
  };
  int place = 0;
  fetch(blockIdx.x, place);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, place ^= 1) {
    const int rows = rows_of(tile);
    const int64_t at = tile * p.tile_rows * p.columns;
    fetch(tile + gridDim.x, place ^ 1);
    wait_for_copies<1>();
    __syncthreads();
    if (p.addend) {
      fetch_run(y, p.addend + at, rows * p.columns, p.y_is_aligned);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
    }
    multiply(x + place * p.tile_rows * p.inner, y, rows);
    __syncthreads();
    store_run(p.y + at, y, rows * p.columns, p.y_is_aligned);
  }
}

// Of few columns of x: `across` threads make the columns of a row of y.
template <typename T, int few, int held>
__global__ void __launch_bounds__(block_threads, resident_blocks<few>) spread_kernel(Product<T> p) {
  const int lane = static_cast<int>(threadIdx.x) % p.across, team = static_cast<int>(threadIdx.x) / p.across;
  const int teams = block_threads / p.across;
  const bool has_whole_row = p.columns == held;
  float weights[held][few], first[held];
#pragma unroll
  for (int j = 0; j < held; ++j) {
    const int column = lane + j * p.across;
    first[j] = p.bias_of(column);
#pragma unroll
    for (int k = 0; k < few; ++k) weights[j][k] = p.weight(k, column);
  }
  for_tiles(p, [&](const T* x, T* y, int rows) {
#pragma unroll 2
    for (int row = team; row < rows; row += teams) {
      float values[few], sums[held];
      load_row(values, x + row * p.inner, p.inner);
      T* const to = y + row * p.columns;
#pragma unroll
      for (int j = 0; j < held; ++j) {
        sums[j] = first[j];
        if (p.addend && lane + j * p.across < p.columns) sums[j] += widen(to[lane + j * p.across]);
#pragma unroll
        for (int k = 0; k < few; ++k) sums[j] = fmaf(values[k], weights[j][k], sums[j]);
      }
      if (has_whole_row)
        store_row(to, sums);
      else
#pragma unroll
        for (int j = 0; j < held; ++j)
          if (lane + j * p.across < p.columns) to[lane + j * p.across] = narrow<T>(sums[j]);
    }
  });
}

// Adds up `count` sums over `across` lanes, at least as many as sums: each step leaves a lane half of them, and in the
// end across / count neighbours have the same one.
template <int count, int all>
__device__ float sum_of_lanes(float (&sums)[all], int lane, int across) {
  const int distance = across / 2;
  if constexpr (count > 1) {
    const bool is_upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      const float other = __shfl_xor_sync(whole_warp, is_upper ? sums[i] : sums[i + count / 2], distance);
      sums[i] = (is_upper ? sums[i + count / 2] : sums[i]) + other;
    }
    return sum_of_lanes<count / 2>(sums, lane, distance);
  } else {
    for (int apart = distance; apart > 0; apart /= 2) sums[0] += __shfl_xor_sync(whole_warp, sums[0], apart);
    return sums[0];
  }
}

// Of few columns of y: `across` lanes sum over a row of x.
template <typename T, int few, int held>
__global__ void __launch_bounds__(block_threads, resident_blocks<few>) gather_kernel(Product<T> p) {
  const int lane = static_cast<int>(threadIdx.x) % p.across, team = static_cast<int>(threadIdx.x) / p.across;
  const int teams = block_threads / p.across, owners = p.across / few, column = lane / owners;
  const bool stores = lane % owners == 0 && column < p.columns;
  const float bias = p.bias_of(column);
  float weights[held][few];
#pragma unroll
  for (int j = 0; j < held; ++j)
#pragma unroll
    for (int i = 0; i < few; ++i) weights[j][i] = p.weight(lane + j * p.across, i);
  for_tiles(p, [&](const T* x, T* y, int rows) {
#pragma unroll 2
    for (int begin = 0; begin < rows; begin += teams) {
      const int row = min(begin + team, rows - 1);
      float sums[few] = {};
#pragma unroll
      for (int j = 0; j < held; ++j) {
        const int k = lane + j * p.across;
        const float value = k < p.inner ? widen(x[row * p.inner + k]) : 0.0f;
#pragma unroll
        for (int i = 0; i < few; ++i) sums[i] = fmaf(value, weights[j][i], sums[i]);
      }
      float sum = sum_of_lanes<few>(sums, lane, p.across) + bias;
      if (!stores || begin + team >= rows) continue;
      T* const to = y + row * p.columns + column;
      if (p.addend) sum += widen(*to);
      *to = narrow<T>(sum);
    }
  });
}

template <typename T>
cudaError_t launch(const NarrowProductCall& c, cudaStream_t stream) {
  const NarrowSizes& sizes = c.sizes;
  Product<T> p{.x = static_cast<const T*>(c.x),
               .w = static_cast<const T*>(c.w),
               .bias = static_cast<const T*>(c.bias),
               .addend = static_cast<const T*>(c.addend),
               .y = static_cast<T*>(c.y),
               .rows = sizes.rows,
               .inner = static_cast<int>(sizes.inner),
               .columns = static_cast<int>(sizes.columns),
               .tile_rows = static_cast<int>(sizes.product_tile_rows()),
               .across = 1,
               .transpose_w = c.transpose_w,
               .x_is_aligned = is_at_16_bytes(c.x),
               .y_is_aligned = is_at_16_bytes(c.y) && is_at_16_bytes(c.addend)};
  const int64_t blocks = std::min<int64_t>(divide_up(sizes.rows, p.tile_rows), sizes.most_product_blocks);
  const auto shared_bytes = static_cast<size_t>(p.tile_rows * sizes.product_tile_bytes_of_row());
  if (sizes.sums_rows())
    with_narrow_rows(sizes.columns, sizes.inner, [&](auto few, auto held) {
      p.across = std::max(threads_across(sizes.inner, held), few());
      gather_kernel<T, few, held><<<static_cast<unsigned>(blocks), block_threads, shared_bytes, stream>>>(p);
    });
  else
    with_narrow_rows(sizes.inner, sizes.columns, [&](auto few, auto held) {
      p.across = threads_across(sizes.columns, held);
      spread_kernel<T, few, held><<<static_cast<unsigned>(blocks), block_threads, shared_bytes, stream>>>(p);
    });
  return cudaGetLastError();
}

}  // namespace

cudaError_t narrow_product(const NarrowProductCall& call, cudaStream_t stream) {
  return with_f32_math(call.type, [&]<typename T>(T*) { return launch<T>(call, stream); });
}

}  // namespace plimsoll::cuda
