#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/division.h"

// Serves the gradients of attention and of its mask ("mma", "one_pass"): delta = dy . y of each row of a head, before
// the tiles are met. Bound by reading y and dy once, in whose order a block walks over some rows of some heads; their
// deltas pass through shared memory, since they are written head after head.

namespace plimsoll::cuda {
namespace {

constexpr int threads = 256, row_threads = 8, rows_at_once = threads / row_threads;
constexpr int length = 8;                                    // elements of an access
constexpr int ahead = 2;                                     // rows of a thread that are on their way together
constexpr int64_t most_heads = 16, enough_blocks = 3 * 132;  // fewer rows a block where there would be fewer blocks

// The rows and heads of a block.
struct DeltaTile {
  int rows = 32, heads, row_tiles, head_groups;
  Divider32 by_heads;

  explicit DeltaTile(const AttentionShape& n)
      : heads(static_cast<int>(divide_up(n.heads, divide_up(n.heads, most_heads)))),
        head_groups(static_cast<int>(divide_up(n.heads, heads))),
        by_heads(heads) {
    while (rows > 8 && n.batch * divide_up(n.rows, rows) * head_groups < enough_blocks) rows /= 2;
    row_tiles = static_cast<int>(divide_up(n.rows, rows));
  }
  int64_t blocks(const AttentionShape& n) const { return n.batch * row_tiles * head_groups; }
  size_t shared_bytes() const { return sizeof(float) * static_cast<size_t>(heads * pitch()); }
  __host__ __device__ int pitch() const { return rows + 1; }  // of a head's deltas
};

// This thread's share of dy . y of `ahead` rows, each at `at` elements; a negative number stands for none.
template <typename T, bool aligned>
__device__ void add_products(float (&sums)[ahead], const T* y, const T* dy, const int (&at)[ahead], int depth) {
  const int lane = static_cast<int>(threadIdx.x) % row_threads;
  if constexpr (aligned) {
    for (int d = lane * length; d < depth; d += row_threads * length) {
      Packed<T, length> a[ahead] = {}, b[ahead] = {};
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (at[i] < 0) continue;
        a[i] = load_packed<length>(y + at[i] + d);
        b[i] = load_packed<length>(dy + at[i] + d);
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i)
#pragma unroll
        for (int e = 0; e < length; ++e) sums[i] += a[i][e] * b[i][e];
    }
  } else {
    for (int d = lane; d < depth; d += row_threads)
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        if (at[i] >= 0) sums[i] += widen(y[at[i] + d]) * widen(dy[at[i] + d]);
  }
}

// What slopes take off a row's scores from column 0 on, in units of log 2.
__device__ inline float slopes_part(const AttentionShape& n, int head, int row) {
  return n.slopes ? n.slopes[head] * static_cast<float>(row) * log2_e : 0.0f;
}

// For one pass it also notes each row's lse, with its part of slopes, and begins the turns and the number of the next
// block, which follows them.
template <typename T, bool aligned>
__global__ void __launch_bounds__(threads) delta_kernel(AttentionShape n, AttentionGradCall grads, DeltaTile tile) {
  extern __shared__ float deltas[];  // [heads, pitch]
  if (grads.one_pass.turns) {
    const int64_t turns = turn_count(n) + 1, all_threads = int64_t{gridDim.x} * threads;
    for (int64_t turn = int64_t{blockIdx.x} * threads + threadIdx.x; turn < turns; turn += all_threads)
      grads.one_pass.turns[turn] = 0;
  }
  int number = static_cast<int>(blockIdx.x);
  const int first_head = number % tile.head_groups * tile.heads;
  number /= tile.head_groups;
  const int first_row = number % tile.row_tiles * tile.rows, depth = static_cast<int>(n.value_depth);
  const int64_t b = number / tile.row_tiles;
  const int rows = min(tile.rows, static_cast<int>(n.rows) - first_row);
  const int heads = min(tile.heads, static_cast<int>(n.heads) - first_head);
  const int64_t start = ((b * n.rows + first_row) * n.heads + first_head) * depth;
  const T *y = static_cast<const T*>(grads.y) + start, *dy = static_cast<const T*>(grads.dy) + start;
  const bool is_first = threadIdx.x % row_threads == 0;
  const int all_heads = static_cast<int>(n.heads);
  for (int done = 0; done < rows * tile.heads; done += ahead * rows_at_once) {
    float sums[ahead] = {};
    int at[ahead], places[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int head = done + i * rows_at_once + static_cast<int>(threadIdx.x) / row_threads;
      const int row = tile.by_heads.divide(head);
      const bool inside = row < rows && head < heads;
      at[i] = inside ? (row * all_heads + head) * depth : -1;
      places[i] = inside && is_first ? head * tile.pitch() + row : -1;
    }
    add_products<T, aligned>(sums, y, dy, at, depth);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
#pragma unroll
      for (int distance = 1; distance < row_threads; distance *= 2)
        sums[i] += __shfl_xor_sync(whole_warp, sums[i], distance);
      if (places[i] >= 0) deltas[places[i]] = sums[i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * tile.rows; i += threads) {
    const int head = i / tile.rows, row = i % tile.rows;
    if (row >= rows) continue;
    const int64_t at = Head{b, first_head + head}.lse(n, first_row + row);
    grads.delta[at] = deltas[head * tile.pitch() + row] * n.dropout.kept_share;
    if (grads.one_pass.log2_lse)
      grads.one_pass.log2_lse[at] = in_log2(grads.lse[at]) + slopes_part(n, first_head + head, first_row + row);
  }
}

}  // namespace

cudaError_t launch_deltas(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  if (shape.batch * shape.heads * shape.rows == 0) return cudaSuccess;
  const DeltaTile tile(shape);
  const bool aligned = shape.value_depth % length == 0 && is_aligned(grads.y, 0) && is_aligned(grads.dy, 0);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(tile.blocks(shape)), threads, tile.shared_bytes(), stream>>>(shape, grads, tile);
    };
    if (aligned)
      launch(delta_kernel<T, true>);
    else
      launch(delta_kernel<T, false>);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
