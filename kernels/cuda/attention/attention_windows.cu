#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention ("mma") in small windows: reads q, k and v once and writes y once.

namespace plimsoll::cuda {
namespace {

constexpr int max_warps = 12, tensors = 4;  // k, v and two stages of q

// Windows of up to 8 * groups rows and columns.
template <typename T, int groups>
__global__ void __launch_bounds__(32 * max_warps)
    attention_windows_kernel(AttentionShape n, AttentionCall call, int step) {
  extern __shared__ uint4 shared[];
  const WindowMask mask{reinterpret_cast<float4*>(shared)};
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int h = static_cast<int>(blockIdx.x) / step, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  constexpr int elements = groups * 8 * window_depth;
  T* const own = reinterpret_cast<T*>(mask.of_threads + WindowMask::bytes / sizeof(float4)) + warp * tensors * elements;
  const SharedRows<T> k_rows{own, groups}, v_rows{own + elements, groups};
  auto q_rows = [&](int stage) { return SharedRows<T>{own + (2 + stage) * elements, groups}; };
  auto rows_of = [&](const void* tensor, int64_t start, int64_t row_step, int count) {
    return WindowRows<const T>(static_cast<const T*>(tensor) + start, row_step, count, depth);
  };
  auto load = [&](int b, int stage) {
    const Head head{b, h};
    k_rows.load(rows_of(call.k, head.k(n), n.k_step, columns));
    v_rows.load(rows_of(call.v, head.v(n), n.v_step, columns));
    q_rows(stage).load(rows_of(call.q, head.q(n), n.q_step, rows));
    commit_copies();
  };
  const int first = static_cast<int>(blockIdx.x) % step * warps + warp, stride = step * warps;
  if (first < n.batch) load(first, 0);
  const float to_log2 = n.scale * log2_e;
  mask.fill(n, h);
  __syncthreads();
  int stage = 0;
  for (int b = first; b < n.batch; b += stride, stage ^= 1) {
    const Head head{b, h};
    const WindowRows<T> y_rows(static_cast<T*>(call.y) + head.y(n), n.heads * n.value_depth, rows, depth);
    EightRows keys[groups], values[window_groups] = {};
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < groups; ++i) {
      keys[i] = k_rows.read(i);
      values[i] = v_rows.read(i);
    }
    if (b + stride < n.batch) load(b + stride, stage ^ 1);
#pragma unroll
    for (int i = 0; i < groups; ++i) values[i] = transposed(values[i]);
    float* const lse_of_rows = call.lse + head.lse(n, lane / 4);
#pragma unroll 1
    for (int tile = 0; 16 * tile < rows; ++tile) {
      const EightRows queries[2] = {q_rows(stage).read(2 * tile), q_rows(stage).read(2 * tile + 1)};
      float scores[window_groups][4] = {};
      float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        add_products<T>(scores[i], queries, keys[i]);
        const float4 added = mask.of(tile, i);
        const float additions[4] = {added.x, added.y, added.z, added.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[i][e] = scores[i][e] * to_log2 + additions[e];
          largest[e / 2] = fmaxf(largest[e / 2], scores[i][e]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& row = largest[half];
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 1));
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 2));
        const float shift = row == -INFINITY ? 0.0f : row;
#pragma unroll
        for (int i = 0; i < groups; ++i)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[i][e] = exp2_approx(scores[i][e] - shift);
            sum[half] += scores[i][e];
          }
        sum[half] += __shfl_xor_sync(whole_warp, sum[half], 1);
        sum[half] += __shfl_xor_sync(whole_warp, sum[half], 2);
        // The log of 0 is -inf, as the lse of a row is that may attend to nothing.
        if (lane % 4 == 0 && 16 * tile + 8 * half + lane / 4 < rows)
          lse_of_rows[16 * tile + 8 * half] = (shift + __log2f(sum[half])) * ln_2;
      }
      RowSums out = {};
#pragma unroll
      for (int i = 0; i < groups; i += 2) add_rows<T>(out, rounded<T>(scores, i / 2), values[i], values[i + 1]);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        y_rows.write(2 * tile + half,
                     rounded_rows<T>(out, half, sum[half] > 0.0f ? __fdividef(1.0f, sum[half]) : 0.0f));
    }
  }
}

}  // namespace

cudaError_t attention_windows(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  const WindowGrid grid(shape, max_warps, tensors);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    auto launch = [&](auto kernel) {
      return launch_mma(kernel, grid.blocks, 32 * grid.warps, grid.bytes, stream, shape, call, grid.blocks_per_head);
    };
    // Windows of seven by seven are the usual ones.
    return groups_of(shape) <= 7 ? launch(attention_windows_kernel<T, 7>) : launch(attention_windows_kernel<T, 8>);
  });
}

}  // namespace plimsoll::cuda
