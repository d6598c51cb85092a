#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention_grad and attention_mask_grad ("mma") in small windows, each in one launch that reads each operand
// once and writes each result once. For the former a window's rows pass through shared memory, and a warp walks over
// its columns, sixteen at a time; for the latter a warp keeps the sums of sixteen rows of the mask.

namespace plimsoll::cuda {
namespace {

constexpr int warps = 4, blocks_per_multiprocessor = 2;

// A window's q, dy, k and v as [max_window, window_depth] in shared memory.
template <typename T>
struct SharedWindow {
  T* memory;

  static constexpr int elements = max_window * window_depth, bytes = 4 * elements * static_cast<int>(sizeof(T));

  __device__ T* at(int number, int group) const {
    return memory + number * elements + group * 8 * window_depth + threadIdx.x % 32 * 8;
  }
  // What lies outside becomes 0.
  __device__ void load(int number, const WindowRows<const T>& rows) const {
#pragma unroll
    for (int i = 0; i < window_groups; ++i) copy_async(at(number, i), rows.at(rows.has(i) ? i : 0), rows.has(i));
  }
  __device__ EightRows read(int number, int group) const {
    return {*reinterpret_cast<const uint4*>(at(number, group))};
  }
};

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
__global__ void __launch_bounds__(32 * warps, blocks_per_multiprocessor)
    attention_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, int step) {
  extern __shared__ uint4 shared[];
  enum { Q, Dy, K, V };
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const WindowMask mask{reinterpret_cast<float4*>(shared)};
  const SharedWindow<T> in{reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(shared) + WindowMask::bytes +
                                                warp * SharedWindow<T>::bytes)};
  const int h = static_cast<int>(blockIdx.x) / step;
  const int64_t y_step = n.heads * n.value_depth;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  const float to_log2 = n.scale * log2_e;
  mask.fill(n, h);
  __syncthreads();
  for (int b = static_cast<int>(blockIdx.x) % step * warps + warp; b < n.batch; b += step * warps) {
    const Head head{b, h};
    __syncwarp();  // the last window is no longer read
    auto rows_of = [&](const void* tensor, int64_t start, int64_t row_step, int count) {
      return WindowRows<const T>(static_cast<const T*>(tensor) + start, row_step, count, depth);
    };
    in.load(Q, rows_of(grads.q, head.q(n), n.q_step, rows));
    in.load(Dy, rows_of(grads.dy, head.y(n), y_step, rows));
    in.load(K, rows_of(grads.k, head.k(n), n.k_step, columns));
    in.load(V, rows_of(grads.v, head.v(n), n.v_step, columns));
    commit_copies();
    const WindowRows<const T> y_rows = rows_of(grads.y, head.y(n), y_step, rows);
    EightRows y[window_groups];
    float lse[window_groups], delta[window_groups];
#pragma unroll
    for (int i = 0; i < window_groups; ++i) {
      y[i] = y_rows.read(i);
      lse[i] = row_lse(n, head, 8 * i + lane / 4, grads);
    }
    wait_for_copies<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < window_groups; ++i) delta[i] = dot<T>(y[i], in.read(Dy, i));

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
        k[half] = in.read(K, first_group + half);
        v[half] = in.read(V, first_group + half);
        k_transposed[half] = transposed(k[half]);
      }
      RowSums dk = {}, dv = {};
#pragma unroll
      for (int tile = 0; tile < window_tiles; ++tile) {
        if (16 * tile >= rows) break;
        const EightRows q[2] = {in.read(Q, 2 * tile), in.read(Q, 2 * tile + 1)};
        const EightRows dy[2] = {in.read(Dy, 2 * tile), in.read(Dy, 2 * tile + 1)};
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

// A block has a part of the batch and one head, a warp sixteen rows.
template <typename T>
__global__ void __launch_bounds__(32 * window_tiles, 3)
    mask_grad_windows_kernel(AttentionShape n, AttentionGradCall grads, float* partials, int64_t parts) {
  __shared__ float4 mask_memory[WindowMask::bytes / sizeof(float4)];
  const WindowMask mask{mask_memory};
  const int tile = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = static_cast<int>(n.heads), h = static_cast<int>(blockIdx.x) % heads;
  const int64_t part = static_cast<int>(blockIdx.x) / heads, y_step = n.heads * n.value_depth;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  const int end = static_cast<int>(n.batch * (part + 1) / parts);
  const float to_log2 = n.scale * log2_e;
  mask.fill(n, h);
  __syncthreads();
  float sums[window_groups][4] = {};
  for (int b = static_cast<int>(n.batch * part / parts); b < end; ++b) {
    const Head head{b, h};
    auto rows_of = [&](const void* tensor, int64_t start, int64_t row_step, int count) {
      return WindowRows<const T>(static_cast<const T*>(tensor) + start, row_step, count, depth);
    };
    const WindowRows<const T> q_rows = rows_of(grads.q, head.q(n), n.q_step, rows);
    const WindowRows<const T> dy_rows = rows_of(grads.dy, head.y(n), y_step, rows);
    const WindowRows<const T> y_rows = rows_of(grads.y, head.y(n), y_step, rows);
    const WindowRows<const T> k_rows = rows_of(grads.k, head.k(n), n.k_step, columns);
    const WindowRows<const T> v_rows = rows_of(grads.v, head.v(n), n.v_step, columns);
    EightRows q[2], dy[2], y[2], k[window_groups], v[window_groups];
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = 2 * tile + half;
      q[half] = q_rows.read(group);
      dy[half] = dy_rows.read(group);
      y[half] = y_rows.read(group);
      lse[half] = row_lse(n, head, 8 * group + lane / 4, grads);
    }
#pragma unroll
    for (int i = 0; i < window_groups; ++i) {
      k[i] = k_rows.read(i);
      v[i] = v_rows.read(i);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) delta[half] = dot<T>(y[half], dy[half]);
#pragma unroll
    for (int i = 0; i < window_groups; ++i) {
      float p[4] = {}, ds[4] = {};
      add_products<T>(p, q, k[i]);
      add_products<T>(ds, dy, v[i]);
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
  const WindowGrid grid(shape, warps, blocks_per_multiprocessor);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch_mma(attention_grad_windows_kernel<T>, grid.blocks, 32 * warps,
                      WindowMask::bytes + warps * SharedWindow<T>::bytes, stream, shape, grads,
                      static_cast<int>(grid.blocks_per_head));
  });
}

cudaError_t mask_grad_windows(const AttentionShape& shape, const AttentionGradCall& grads, float* partials,
                              int64_t parts, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    mask_grad_windows_kernel<T>
        <<<static_cast<unsigned>(shape.heads * parts), 32 * window_tiles, 0, stream>>>(shape, grads, partials, parts);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
