#include "kernels/cuda/common/byte_steps.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/pool/pool.cuh"

// Serves average_pool and average_pool_grad. Every element is written once; what overlapping windows read again comes
// from the caches. Of images with the usual windows a thread makes a square of neighbours, and reads once what they
// share.

namespace plimsoll::cuda {
namespace {

__device__ float counted(const PoolAxis& axis, int32_t position, bool padded) {
  const Taps taps(axis, position);
  return static_cast<float>(padded ? taps.end_padded : taps.end - taps.first);
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_kernel(PoolPlanes pool, bool padded, T* y, const T* x, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::Out, n, number);
  float sums[n] = {};
  for_window<n>(pool, place, x, [&](const Vector<T, n>& values, int32_t) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += widen(values.at[i]);
  });
  const float count = counted(pool.axes[0], place.a, padded) * counted(pool.axes[1], place.b, padded) *
                      counted(pool.axes[2], place.c, padded);
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(count > 0.0f ? sums[i] / count : 0.0f);
  store_vector(y + int64_t{number} * n, values);
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_grad_kernel(PoolPlanes pool, bool padded, T* dx, const T* dy, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::In, n, number);
  float sums[n] = {};
  for_window_rows_over(pool, place, [&](int32_t a, int32_t b, const Positions& over, int32_t) {
    const T* windows = dy + pool.element(PoolSide::Out, place.plane, a, b, 0) + place.lane;
    const float count_row = counted(pool.axes[0], a, padded) * counted(pool.axes[1], b, padded);
    for (int32_t c = over.first; c <= over.last; ++c) {
      if (over.tap(pool.axes[2], c) < 0) continue;
      const Vector<T, n> grads = load_vector<n>(windows + int64_t{c} * pool.lanes);
      const float count = count_row * counted(pool.axes[2], c, padded);
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i] += widen(grads.at[i]) / count;
    }
  });
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(sums[i]);
  store_vector(dx + int64_t{number} * n, values);
}

// 1 / counted for windows without dilation, or 0 where a window has nothing to average.
__device__ float share_of(const PoolAxis& axis, int32_t position, bool padded) {
  const int32_t start = position * axis.stride - axis.pad_begin;
  const int32_t end = min(start + axis.kernel, axis.in + (padded ? axis.pad_end : 0));
  const int32_t count = end - (padded ? start : max(start, 0));
  return count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
}

// Results of a thread, down and across: those with a stride share little of what they read.
constexpr int tile_side(int stride) { return stride == 1 ? 4 : 1; }

// Sums of windows: those of x, with the averages at last, or of a gradient with a stride of 1, windows of dy that has
// its windows' shares at first. A thread goes down the rows of its square, and adds what a row has to all results that
// meet it.
template <int kernel, int stride, bool gradient, int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_tiles_kernel(PoolSquares squares, bool padded, T* out, const T* in) {
  static_assert(!gradient || stride == 1, "dx has as many windows as places");
  constexpr int side = tile_side(stride), span = (side - 1) * stride + kernel;
  constexpr PoolSide from_side = gradient ? PoolSide::Out : PoolSide::In;
  constexpr PoolSide to_side = gradient ? PoolSide::In : PoolSide::Out;
  const PoolPlanes& pool = squares.pool;
  const PoolAxis &b = pool.axes[1], &c = pool.axes[2];
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= squares.count) return;
  const PoolSquare place(squares, n, number);
  const int32_t out_row = place.row * side, out_column = place.column * side;
  const int32_t first_row = out_row * stride + (gradient ? b.pad_begin - kernel + 1 : -b.pad_begin);
  const int32_t first_column = out_column * stride + (gradient ? c.pad_begin - kernel + 1 : -c.pad_begin);
  const int32_t rows = pool.size(from_side, 1), columns = pool.size(from_side, 2);
  const int32_t row_elements = columns * pool.lanes, pixel_bytes = pool.lanes * static_cast<int32_t>(sizeof(T));
  const T* pixels_of_row =
      in + (int64_t{place.plane} * rows + first_row) * row_elements + int64_t{first_column} * pool.lanes + place.lane;
  float shares[gradient ? span : side];
#pragma unroll
  for (int i = 0; i < (gradient ? span : side); ++i)
    shares[i] = share_of(c, (gradient ? first_column : out_column) + i, padded);

  float sums[side][side][n] = {};
#pragma unroll
  for (int i = 0; i < span; ++i, pixels_of_row += row_elements) {
    const int32_t row = first_row + i;
    const auto limit = static_cast<unsigned>(static_cast<unsigned>(row) < static_cast<unsigned>(rows) ? columns : 0);
    Packed<T, n> pixels[span];
#pragma unroll
    for (int j = 0; j < span; ++j)
      pixels[j] = static_cast<unsigned>(first_column + j) < limit
                      ? load_packed<n>(step_ahead(pixels_of_row, j, pixel_bytes))
                      : Packed<T, n>{};
    float across[side][n] = {};
#pragma unroll
    for (int j = 0; j < span; ++j)
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float pixel = pixels[j][k];
#pragma unroll
        for (int q = 0; q < side; ++q)
          if (j >= q * stride && j < q * stride + kernel) across[q][k] += gradient ? pixel * shares[j] : pixel;
      }
    const float row_share = gradient ? share_of(b, row, padded) : 1.0f;
#pragma unroll
    for (int p = 0; p < side; ++p)
      if (i >= p * stride && i < p * stride + kernel)
#pragma unroll
        for (int q = 0; q < side; ++q)
#pragma unroll
          for (int k = 0; k < n; ++k) sums[p][q][k] += gradient ? across[q][k] * row_share : across[q][k];
  }
  T* to = out + pool.element(to_side, place.plane, 0, out_row, out_column) + place.lane;
#pragma unroll
  for (int p = 0; p < side; ++p, to += pool.size(to_side, 2) * pool.lanes) {
    if (out_row + p >= pool.size(to_side, 1)) break;
    const float row_share = gradient ? 1.0f : share_of(b, out_row + p, padded);
#pragma unroll
    for (int q = 0; q < side; ++q) {
      if (out_column + q >= pool.size(to_side, 2)) break;
      if constexpr (!gradient)
#pragma unroll
        for (int k = 0; k < n; ++k) sums[p][q][k] *= row_share * shares[q];
      store_packed(step_ahead(to, q, pixel_bytes), pack<T, n>(sums[p][q]));
    }
  }
}

template <int kernel, int stride, int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_grad_squares_kernel(PoolSquares squares, bool padded, T* dx, const T* dy) {
  constexpr int reach = (kernel - 1) / stride;
  const PoolPlanes& pool = squares.pool;
  const PoolAxis &b = pool.axes[1], &c = pool.axes[2];
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= squares.count) return;
  const PoolSquare place(squares, n, number);
  Packed<T, n> grads[reach + 1][reach + 1];
  float shares[reach + 1][reach + 1];
#pragma unroll
  for (int i = 0; i <= reach; ++i)
#pragma unroll
    for (int j = 0; j <= reach; ++j) {
      const int32_t row = place.row - reach + i, column = place.column - reach + j;
      const bool is_there = row >= 0 && row < b.out && column >= 0 && column < c.out;
      grads[i][j] = is_there
                        ? load_packed<n>(dy + pool.element(PoolSide::Out, place.plane, 0, row, column) + place.lane)
                        : Packed<T, n>{};
      shares[i][j] = share_of(b, row, padded) * share_of(c, column, padded);
    }
#pragma unroll
  for (int p = 0; p < stride; ++p)
#pragma unroll
    for (int q = 0; q < stride; ++q) {
      const int32_t row = place.row * stride + p - b.pad_begin, column = place.column * stride + q - c.pad_begin;
      if (row < 0 || row >= b.in || column < 0 || column >= c.in) continue;
      float sums[n] = {};
#pragma unroll
      for (int i = 0; i <= reach; ++i)
#pragma unroll
        for (int j = 0; j <= reach; ++j) {
          if (p + (reach - i) * stride >= kernel || q + (reach - j) * stride >= kernel) continue;
#pragma unroll
          for (int k = 0; k < n; ++k) sums[k] += grads[i][j][k] * shares[i][j];
        }
      store_packed(dx + pool.element(PoolSide::In, place.plane, 0, row, column) + place.lane, pack<T, n>(sums));
    }
}

template <int kernel, int stride, bool gradient, typename T>
void launch_tiles(const PoolShape& shape, bool padded, T* out, const T* in, cudaStream_t stream) {
  constexpr int most_lanes = 4;  // more would take more registers than let enough threads run
  const auto tiles_along = [&](int d) {
    return static_cast<int32_t>(divide_up(gradient ? shape.in[d] : shape.out[d], tile_side(stride)));
  };
  with_widest_access<most_lanes>(shape, [&](auto n) {
    const PoolSquares tiles(shape, n, tiles_along(1), tiles_along(2));
    average_tiles_kernel<kernel, stride, gradient, n()>
        <<<blocks_for(tiles.count), block_threads, 0, stream>>>(tiles, padded, out, in);
  });
}

template <int kernel, int stride, int n, typename T>
void launch_squares(const PoolShape& shape, bool padded, T* dx, const T* dy, cudaStream_t stream) {
  const PoolSquares squares = gradient_squares(shape, n);
  average_pool_grad_squares_kernel<kernel, stride, n>
      <<<blocks_for(squares.count), block_threads, 0, stream>>>(squares, padded, dx, dy);
}

}  // namespace

cudaError_t average_pool(const PoolShape& shape, Scalar type, bool include_padding, void* y, const void* x,
                         cudaStream_t stream) {
  return over_accesses(shape, PoolSide::Out, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    T* to = static_cast<T*>(y);
    const T* from = static_cast<const T*>(x);
    if (has_windows(shape, 2, 2)) return launch_tiles<2, 2, false>(shape, include_padding, to, from, stream);
    if (has_windows(shape, 3, 2)) return launch_tiles<3, 2, false>(shape, include_padding, to, from, stream);
    if (has_windows(shape, 3, 1)) return launch_tiles<3, 1, false>(shape, include_padding, to, from, stream);
    average_pool_kernel<n()>
        <<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), include_padding, to, from, accesses);
  });
}

cudaError_t average_pool_grad(const PoolShape& shape, Scalar type, bool include_padding, void* dx, const void* dy,
                              cudaStream_t stream) {
  return over_accesses(shape, PoolSide::In, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    T* to = static_cast<T*>(dx);
    const T* from = static_cast<const T*>(dy);
    if (has_windows(shape, 2, 2)) return launch_squares<2, 2, n()>(shape, include_padding, to, from, stream);
    if (has_windows(shape, 3, 2)) return launch_squares<3, 2, n()>(shape, include_padding, to, from, stream);
    if (has_windows(shape, 3, 1)) return launch_tiles<3, 1, true>(shape, include_padding, to, from, stream);
    average_pool_grad_kernel<n()>
        <<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), include_padding, to, from, accesses);
  });
}

}  // namespace plimsoll::cuda
