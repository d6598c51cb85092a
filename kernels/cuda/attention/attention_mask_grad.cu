#include "kernels/cuda/attention/attention_tiles.cuh"

// Serves attention_mask_grad ("flash"), for what the matrix units do not take. A block owns 16 x 16 elements of the
// mask, a thread each, and walks over the samples and heads that share them.

namespace plimsoll::cuda {
namespace {

constexpr int tile = 16, tile_threads = tile * tile;

template <typename T>
__global__ void __launch_bounds__(tile_threads)
    mask_grad_flash_kernel(AttentionShape n, AttentionGradCall grads, MaskGradCall mask, int64_t row_tiles,
                           int64_t column_tiles) {
  extern __shared__ uint4 shared[];
  const int64_t pitch = (n.depth > n.value_depth ? n.depth : n.value_depth) + 1;
  float *q = reinterpret_cast<float*>(shared), *dy = q + tile * pitch, *k = dy + tile * pitch, *v = k + tile * pitch;
  const int64_t first_column = blockIdx.x % column_tiles * tile,
                first_row = blockIdx.x / column_tiles % row_tiles * tile;
  const int64_t of_mask = blockIdx.x / column_tiles / row_tiles;  // [mask_batch, mask_heads]
  const int64_t mask_b = of_mask / mask.mask_heads, mask_h = of_mask % mask.mask_heads;
  const int own = static_cast<int>(threadIdx.x) / tile, lane = static_cast<int>(threadIdx.x) % tile;
  const int64_t row = first_row + own, column = first_column + lane;
  auto load = [&](float* to, const void* head, int64_t step, int64_t first, int64_t rows, int64_t depth) {
    for (int64_t d = lane; d < depth; d += tile)
      to[own * pitch + d] = first + own < rows ? widen(static_cast<const T*>(head)[(first + own) * step + d]) : 0.0f;
  };
  float sum = 0.0f;
  for (int64_t b = mask.mask_batch == 1 ? 0 : mask_b; b < (mask.mask_batch == 1 ? n.batch : mask_b + 1); ++b)
    for (int64_t h = mask.mask_heads == 1 ? 0 : mask_h; h < (mask.mask_heads == 1 ? n.heads : mask_h + 1); ++h) {
      const Head head{b, h};
      const int64_t y_step = n.heads * n.value_depth;
      __syncthreads();
      load(q, static_cast<const T*>(grads.q) + head.q(n), n.q_step, first_row, n.rows, n.depth);
      load(dy, static_cast<const T*>(grads.dy) + head.y(n), y_step, first_row, n.rows, n.value_depth);
      load(k, static_cast<const T*>(grads.k) + head.k(n), n.k_step, first_column, n.columns, n.depth);
      load(v, static_cast<const T*>(grads.v) + head.v(n), n.v_step, first_column, n.columns, n.value_depth);
      __syncthreads();
      float product = 0.0f, dy_v = 0.0f, delta = 0.0f;
      for (int64_t d = 0; d < n.depth; ++d) product += q[own * pitch + d] * k[lane * pitch + d];
      for (int64_t d = 0; d < n.value_depth; ++d) dy_v += dy[own * pitch + d] * v[lane * pitch + d];
      const T* y_row = static_cast<const T*>(grads.y) + head.y(n) + row * y_step;
      if (row < n.rows)
        for (int64_t d = lane; d < n.value_depth; d += tile) delta += dy[own * pitch + d] * widen(y_row[d]);
      for (int distance = 1; distance < tile; distance *= 2) delta += __shfl_xor_sync(whole_warp, delta, distance);
      const float score = head.score(n, row, column, product);
      if (score == -INFINITY) continue;
      const float lse = grads.lse[head.lse(n, row)];
      if (lse < closed_lse) continue;
      sum += expf(score - lse) * (kept_factor(n, head, row, column) * dy_v - delta);
    }
  if (row < n.rows && column < n.columns)
    store_any(mask.dmask, mask.dmask_type, (of_mask * n.rows + row) * n.columns + column, static_cast<double>(sum));
}

}  // namespace

cudaError_t attention_mask_grad(const AttentionShape& shape, const AttentionGradCall& grads, const MaskGradCall& mask,
                                cudaStream_t stream) {
  const int64_t row_tiles = (shape.rows + tile - 1) / tile, column_tiles = (shape.columns + tile - 1) / tile;
  const int64_t blocks = mask.mask_batch * mask.mask_heads * row_tiles * column_tiles;
  if (blocks == 0) return cudaSuccess;
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  return with_f32_math(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch_tiles(mask_grad_flash_kernel<T>, blocks, tile_threads, static_cast<size_t>(4 * tile * (depth + 1)),
                        stream, shape, grads, mask, row_tiles, column_tiles);
  });
}

}  // namespace plimsoll::cuda
