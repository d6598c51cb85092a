#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention ("mma") in small windows: reads q, k and v once and writes y once.

namespace plimsoll::cuda {
namespace {

constexpr int warps = 4, blocks_per_multiprocessor = 3;

// Windows of up to 8 * groups columns.
template <typename T, int groups>
__global__ void __launch_bounds__(32 * warps, blocks_per_multiprocessor)
    attention_windows_kernel(AttentionShape n, AttentionCall call, int step) {
  __shared__ float4 mask_memory[WindowMask::bytes / sizeof(float4)];
  const WindowMask mask{mask_memory};
  const int h = static_cast<int>(blockIdx.x) / step, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, depth = static_cast<int>(n.depth);
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const float to_log2 = n.scale * log2_e;
  mask.fill(n, h);
  __syncthreads();
  for (int b = static_cast<int>(blockIdx.x) % step * warps + warp; b < n.batch; b += step * warps) {
    const Head head{b, h};
    const WindowRows<const T> q_rows(static_cast<const T*>(call.q) + head.q(n), n.q_step, rows, depth);
    const WindowRows<const T> k_rows(static_cast<const T*>(call.k) + head.k(n), n.k_step, columns, depth);
    const WindowRows<const T> v_rows(static_cast<const T*>(call.v) + head.v(n), n.v_step, columns, depth);
    const WindowRows<T> y_rows(static_cast<T*>(call.y) + head.y(n), n.heads * n.value_depth, rows, depth);
    EightRows keys[groups], values[window_groups] = {};
#pragma unroll
    for (int i = 0; i < groups; ++i) {
      keys[i] = k_rows.read(i);
      values[i] = v_rows.read(i);
    }
    EightRows queries[2] = {q_rows.read(0), q_rows.read(1)};
#pragma unroll
    for (int i = 0; i < groups; ++i) values[i] = transposed(values[i]);
    float* const lse_of_rows = call.lse + head.lse(n, lane / 4);
#pragma unroll 1
    for (int tile = 0; 16 * tile < rows; ++tile) {
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
      queries[0] = q_rows.read(2 * tile + 2);
      queries[1] = q_rows.read(2 * tile + 3);
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
  const WindowGrid grid(shape, warps, blocks_per_multiprocessor);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    auto launch = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(grid.blocks), 32 * warps, 0, stream>>>(shape, call,
                                                                            static_cast<int>(grid.blocks_per_head));
    };
    // Windows of seven by seven are the usual ones.
    if (shape.columns <= 56)
      launch(attention_windows_kernel<T, 7>);
    else
      launch(attention_windows_kernel<T, 8>);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
