#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention_grad and attention_mask_grad ("mma") in small windows, each in one launch that reads each operand
// once and writes each result once. For the former a window's rows pass through shared memory, and a warp walks over
// its columns, sixteen at a time; for the latter a warp keeps the sums of sixteen rows of the mask.

namespace plimsoll::cuda {
namespace {

enum WindowTensor { Q, Dy, K, V, Y };

// Backward has two stages of q, dy, k and v, and one of y, which delta alone is made from.
constexpr int max_warps = 6, staged_tensors = 4, tensors = 2 * staged_tensors + 1;
// The gradient of the mask has two stages of all five.
constexpr int mask_grad_tensors = 5;

// INFINITY beyond the last row.
__device__ float row_lse(const AttentionShape& n, const Head& head, int row, const AttentionGradCall& grads) {
  return row < n.rows ? in_log2(grads.lse[head.lse(n, row)]) : INFINITY;
}

// y . dy of this thread's row.
template <typename T>
__device__ float dot(const EightRows& y, const EightRows& dy) {
  const auto &a = reinterpret_cast<const Vector<T, 8>&>(y), &b = reinterpret_cast<const Vector<T, 8>&>(dy);
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < 8; ++d) sum += widen(a.at[d]) * widen(b.at[d]);
  sum += __shfl_xor_sync(whole_warp, sum, 1);
  return sum + __shfl_xor_sync(whole_warp, sum, 2);
}

// Sums q . k and dy . v of 16 x 8 pairs become probabilities and dS.
__device__ void differentiate(float (&p)[4], float (&ds)[4], float to_log2, const float4& added, const float* lse,
                              const float* delta) {
  const float additions[4] = {added.x, added.y, added.z, added.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    p[e] = probability(p[e] * to_log2 + additions[e], lse[e / 2]);
    ds[e] = p[e] * (ds[e] - delta[e / 2]);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * max_warps)
    attention_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, int step, int groups) {
  extern __shared__ uint4 shared[];
  const WindowMask mask{reinterpret_cast<float4*>(shared)};
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int h = static_cast<int>(blockIdx.x) / step, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  const int elements = groups * 8 * window_depth;
  T* const own = reinterpret_cast<T*>(mask.of_threads + WindowMask::bytes / sizeof(float4)) + warp * tensors * elements;
  const int64_t y_step = n.heads * n.value_depth;
  const float to_log2 = n.scale * log2_e;
  auto rows_of = [&](const void* tensor, int64_t start, int64_t row_step, int count) {
    return WindowRows<const T>(static_cast<const T*>(tensor) + start, row_step, count, depth);
  };
  auto in = [&](int tensor, int stage) {
    const int place = tensor == Y ? 2 * staged_tensors : stage * staged_tensors + tensor;
    return SharedRows<T>{own + place * elements, groups};
  };
  float lse[window_groups], next_lse[window_groups];
  auto load = [&](int b, int stage) {
    const Head head{b, h};
    in(Q, stage).load(rows_of(grads.q, head.q(n), n.q_step, rows));
    in(Dy, stage).load(rows_of(grads.dy, head.y(n), y_step, rows));
    in(K, stage).load(rows_of(grads.k, head.k(n), n.k_step, columns));
    in(V, stage).load(rows_of(grads.v, head.v(n), n.v_step, columns));
    in(Y, stage).load(rows_of(grads.y, head.y(n), y_step, rows));
    commit_copies();
#pragma unroll
    for (int i = 0; i < window_groups; ++i) next_lse[i] = row_lse(n, head, 8 * i + lane / 4, grads);
  };
  const int first = static_cast<int>(blockIdx.x) % step * warps + warp, stride = step * warps;
  if (first < n.batch) load(first, 0);
  mask.fill(n, h);
  __syncthreads();
  int stage = 0;
  for (int b = first; b < n.batch; b += stride, stage ^= 1) {
    const Head head{b, h};
    float delta[window_groups];
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < window_groups; ++i) {
      delta[i] = dot<T>(in(Y, stage).read(i), in(Dy, stage).read(i));
      lse[i] = next_lse[i];
    }
    if (b + stride < n.batch) load(b + stride, stage ^ 1);

    const WindowRows<T> dq_rows(static_cast<T*>(grads.dq) + head.q(n), n.q_step, rows, depth);
    const WindowRows<T> dk_rows(static_cast<T*>(grads.dk) + head.k(n), n.k_step, columns, depth);
    const WindowRows<T> dv_rows(static_cast<T*>(grads.dv) + head.v(n), n.v_step, columns, depth);
    RowSums dq[window_tiles] = {};
#pragma unroll 1
    for (int column_tile = 0; 16 * column_tile < columns; ++column_tile) {
      const int first_group = 2 * column_tile;
      EightRows k[2], v[2], k_transposed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        k[half] = in(K, stage).read(first_group + half);
        v[half] = in(V, stage).read(first_group + half);
        k_transposed[half] = transposed(k[half]);
      }
      RowSums dk = {}, dv = {};
#pragma unroll
      for (int tile = 0; tile < window_tiles; ++tile) {
        if (16 * tile >= rows) break;
        const EightRows q[2] = {in(Q, stage).read(2 * tile), in(Q, stage).read(2 * tile + 1)};
        const EightRows dy[2] = {in(Dy, stage).read(2 * tile), in(Dy, stage).read(2 * tile + 1)};
        float p[2][4] = {}, ds[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (8 * (first_group + half) >= columns) break;
          add_products<T>(p[half], q, k[half]);
          add_products<T>(ds[half], dy, v[half]);
          differentiate(p[half], ds[half], to_log2, mask.of(tile, first_group + half), lse + 2 * tile,
                        delta + 2 * tile);
        }
        const LeftFragment weights = rounded<T>(p, 0), gradients = rounded<T>(ds, 0);
        add_rows<T>(dq[tile], gradients, k_transposed[0], k_transposed[1]);
        add_rows<T>(dv, transposed(weights), transposed(dy[0]), transposed(dy[1]));
        add_rows<T>(dk, transposed(gradients), transposed(q[0]), transposed(q[1]));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        dk_rows.write(first_group + half, rounded_rows<T>(dk, half, n.scale));
        dv_rows.write(first_group + half, rounded_rows<T>(dv, half, 1.0f));
      }
    }
#pragma unroll
    for (int tile = 0; tile < window_tiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) dq_rows.write(2 * tile + half, rounded_rows<T>(dq[tile], half, n.scale));
  }
}

// A block has a part of the batch and one head, a warp sixteen rows. All warps read a window's columns: it passes
// through shared memory in two stages, to which a warp copies the groups of eight rows that have its number or four
// more.
template <typename T>
__global__ void __launch_bounds__(32 * window_tiles, 3)
    mask_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, float* partials, int64_t parts) {
  extern __shared__ uint4 shared[];
  const WindowMask mask{reinterpret_cast<float4*>(shared)};
  T* const memory = reinterpret_cast<T*>(mask.of_threads + WindowMask::bytes / sizeof(float4));
  const int tile = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(n.heads), h = static_cast<int>(blockIdx.x) % heads;
  const int64_t part = static_cast<int>(blockIdx.x) / heads, y_step = n.heads * n.value_depth;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  const int first = static_cast<int>(n.batch * part / parts), end = static_cast<int>(n.batch * (part + 1) / parts);
  const float to_log2 = n.scale * log2_e;
  auto in = [&](int tensor, int stage) {
    return SharedRows<T>{memory + (stage * mask_grad_tensors + tensor) * max_window * window_depth, window_groups};
  };
  auto load = [&](int tensor, int stage, const void* from, int64_t start, int64_t row_step, int count) {
    const WindowRows<const T> window(static_cast<const T*>(from) + start, row_step, count, depth);
#pragma unroll
    for (int i = tile; i < window_groups; i += window_tiles)
      copy_async(in(tensor, stage).at(i), window.at(window.has(i) ? i : 0), window.has(i));
  };
  auto load_window = [&](int b, int stage) {
    const Head head{b, h};
    load(Q, stage, grads.q, head.q(n), n.q_step, rows);
    load(Dy, stage, grads.dy, head.y(n), y_step, rows);
    load(K, stage, grads.k, head.k(n), n.k_step, columns);
    load(V, stage, grads.v, head.v(n), n.v_step, columns);
    load(Y, stage, grads.y, head.y(n), y_step, rows);
    commit_copies();
  };
  if (first < end) load_window(first, 0);
  mask.fill(n, h);
  float sums[window_groups][4] = {};
  for (int b = first, stage = 0; b < end; ++b, stage ^= 1) {
    const Head head{b, h};
    EightRows q[2], dy[2], y[2];
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) lse[half] = row_lse(n, head, 16 * tile + 8 * half + lane / 4, grads);
    wait_for_copies<0>();
    __syncthreads();  // this window and the mask have arrived, and the other stage is no longer read
    if (b + 1 < end) load_window(b + 1, stage ^ 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      q[half] = in(Q, stage).read(2 * tile + half);
      dy[half] = in(Dy, stage).read(2 * tile + half);
      y[half] = in(Y, stage).read(2 * tile + half);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) delta[half] = dot<T>(y[half], dy[half]);
#pragma unroll
    for (int i = 0; i < window_groups; ++i) {
      float p[4] = {}, ds[4] = {};
      add_products<T>(p, q, in(K, stage).read(i));
      add_products<T>(ds, dy, in(V, stage).read(i));
      differentiate(p, ds, to_log2, mask.of(tile, i), lse, delta);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] += ds[e];
    }
  }
  float* const out = partials + (part * heads + h) * n.rows * n.columns;
#pragma unroll
  for (int i = 0; i < window_groups; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = 16 * tile + e / 2 * 8 + lane / 4, column = 8 * i + lane % 4 * 2 + e % 2;
      if (row < rows && column < columns) out[row * columns + column] = sums[i][e];
    }
}

}  // namespace

cudaError_t attention_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const WindowGrid grid(shape, max_warps, tensors);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch_mma(attention_grad_windows_kernel<T>, grid.blocks, 32 * grid.warps, grid.bytes, stream, shape, grads,
                      grid.blocks_per_head, groups_of(shape));
  });
}

cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                              int64_t parts, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    constexpr int bytes = WindowMask::bytes + 2 * mask_grad_tensors * max_window * window_depth * 2;
    return launch_mma(mask_grad_windows_kernel<T>, shape.heads * parts, 32 * window_tiles, bytes, stream, shape, grads,
                      partials, parts);
  });
}

}  // namespace plimsoll::cuda
