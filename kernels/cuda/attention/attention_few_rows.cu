#include "kernels/cuda/attention/attention_few_rows.cuh"

#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/few_rows.h"

// Serves attention and attention_grad ("few_rows") of heads of up to 64 rows and columns that are long or end within a
// 16-byte word: q, k, v and dy are read once, and nothing else but the lse. Deltas are sums over all of a row's
// columns, which a block has.

namespace plimsoll::cuda {
namespace {

// Sums of products become scores; what is outside or closed becomes -inf.
template <bool forms>
__device__ void score_few(FewScores& scores, const AttentionShape& n, const Head& head, const FewPlace& place) {
  const int ends[2] = {open_columns(n, place.row), open_columns(n, place.row + 8)};
#pragma unroll
  for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = place.column_of(t, e);
      if constexpr (forms)
        scores[t][e] = head.score(n, place.row_of(e), column, scores[t][e]);
      else
        scores[t][e] = column < ends[e / 2] ? n.scale * scores[t][e] : -INFINITY;
    }
}

// What a sum of exponentials against `largest` is multiplied with, to be against `top`.
__device__ float share_of_top(float largest, float top) {
  return largest == -INFINITY ? 0.0f : exp2_approx((largest - top) * log2_e);
}

template <int width, bool forms, typename T>
__global__ void __launch_bounds__(32 * few_warps, 2)
    few_rows_kernel(const __grid_constant__ AttentionShape n, const __grid_constant__ AttentionCall call,
                    const FewRows tile) {
  extern __shared__ uint4 shared[];
  const Head head{blockIdx.x / n.heads, blockIdx.x % n.heads};
  T *q = reinterpret_cast<T*>(shared), *k = q + tile.rows * tile.pitch, *v = k + tile.columns * tile.pitch;
  T* const weights = v + tile.columns * tile.pitch;
  copy_few_rows<width>(q, static_cast<const T*>(call.q) + head.q(n), n.q_step, n.rows, tile.rows, n.depth, tile);
  copy_few_rows<width>(k, static_cast<const T*>(call.k) + head.k(n), n.k_step, n.columns, tile.columns, n.depth, tile);
  commit_copies();
  copy_few_rows<width>(v, static_cast<const T*>(call.v) + head.v(n), n.v_step, n.columns, tile.columns, n.depth, tile);
  commit_copies();
  __shared__ float2 parts[2][max_few_rows];  // of both halves of the columns: a row's largest score and its sum
  const FewPlace place;
  const bool computes = place.first_row < tile.rows, writes = threadIdx.x % 4 == 0;
  wait_for_copies<1>();
  __syncthreads();
  FewScores scores;
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  if (computes) {
    multiply_few_rows(scores, q, k, place, tile);
    score_few<forms>(scores, n, head, place);
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) largest[e / 2] = fmaxf(largest[e / 2], scores[t][e]);
#pragma unroll
    for (float& of_row : largest) of_row = largest_of_quad(of_row);
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float shift = largest[e / 2] == -INFINITY ? 0.0f : largest[e / 2];
        scores[t][e] = exp2_approx((scores[t][e] - shift) * log2_e);
        sum[e / 2] += scores[t][e];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = sum_of_quad(sum[half]);
      if (writes) parts[place.half()][place.row + 8 * half] = make_float2(largest[half], sum[half]);
    }
  }
  __syncthreads();
  if (computes) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row + 8 * half;
      const float2 other = parts[1 - place.half()][row];
      const float top = fmaxf(largest[half], other.x);
      const float own = share_of_top(largest[half], top),
                  total = sum[half] * own + other.y * share_of_top(other.x, top);
      const WithSink with_sink(call.sinks, head.h, top, total);
      factor[half] = with_sink.sum > 0.0f ? own * n.dropout.factor / with_sink.sum : 0.0f;
      if (writes && place.half() == 0 && row < n.rows) call.lse[head.lse(n, row)] = with_sink.lse;
    }
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[t][e] *= factor[e / 2];
    if (n.dropout.blocks > 0) drop_few(scores, n, head, place);
    store_weights(weights, scores, place);
  }
  wait_for_copies<0>();
  __syncthreads();  // weights and v are there, and q is read no more
  weigh_few_rows<Weighs::Columns>(q, weights, v, 1.0f, tile);
  __syncthreads();
  store_few_rows<width>(static_cast<T*>(call.y) + head.y(n), n.heads * n.value_depth, n.rows, n.value_depth, q, tile);
}

template <int width, bool forms, typename T>
__global__ void __launch_bounds__(32 * few_warps, 2)
    few_rows_grad_kernel(const __grid_constant__ AttentionShape n, const __grid_constant__ AttentionGradCall grads,
                         const FewRows tile) {
  extern __shared__ uint4 shared[];
  const Head head{blockIdx.x / n.heads, blockIdx.x % n.heads};
  T *q = reinterpret_cast<T*>(shared), *k = q + tile.rows * tile.pitch, *v = k + tile.columns * tile.pitch;
  T *dy = v + tile.columns * tile.pitch, *weights = dy + tile.rows * tile.pitch;
  T* const ds = weights + tile.rows * FewRows::weights_pitch;
  const int64_t y_step = n.heads * n.value_depth;
  copy_few_rows<width>(q, static_cast<const T*>(grads.q) + head.q(n), n.q_step, n.rows, tile.rows, n.depth, tile);
  copy_few_rows<width>(k, static_cast<const T*>(grads.k) + head.k(n), n.k_step, n.columns, tile.columns, n.depth, tile);
  commit_copies();
  copy_few_rows<width>(v, static_cast<const T*>(grads.v) + head.v(n), n.v_step, n.columns, tile.columns, n.depth, tile);
  copy_few_rows<width>(dy, static_cast<const T*>(grads.dy) + head.y(n), y_step, n.rows, tile.rows, n.depth, tile);
  commit_copies();
  __shared__ float parts[2][max_few_rows];  // of deltas, for both halves of the columns
  const FewPlace place;
  const bool computes = place.first_row < tile.rows;
  wait_for_copies<1>();
  __syncthreads();
  FewScores scores, dp;
  [[maybe_unused]] FewScores slopes;
  if (computes) multiply_few_rows(scores, q, k, place, tile);
  wait_for_copies<0>();
  __syncthreads();
  float delta[2] = {};
  if (computes) {
    multiply_few_rows(dp, dy, v, place, tile);
    float lse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row + 8 * half;
      lse[half] = row < n.rows ? in_log2(grads.lse[head.lse(n, row)]) : INFINITY;
    }
    if (n.dropout.blocks > 0) drop_few(dp, n, head, place);
    // Scores become probabilities, and with a cap dp is multiplied with its slope once delta is known.
    if constexpr (forms) {
#pragma unroll
      for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) slopes[t][e] = cap_slope(n, scores[t][e]);
    }
    score_few<forms>(scores, n, head, place);
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[t][e] = probability(scores[t][e] * log2_e, lse[e / 2]);
        delta[e / 2] += scores[t][e] * dp[t][e];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      delta[half] = sum_of_quad(delta[half]);
      if (threadIdx.x % 4 == 0) parts[place.half()][place.row + 8 * half] = delta[half];
    }
  }
  __syncthreads();
  if (computes) {
#pragma unroll
    for (int half = 0; half < 2; ++half) delta[half] += parts[1 - place.half()][place.row + 8 * half];
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dp[t][e] = scores[t][e] * (dp[t][e] - delta[e / 2]);
        if constexpr (forms) dp[t][e] *= slopes[t][e];
      }
    if (n.dropout.blocks > 0) drop_few(scores, n, head, place);
    store_weights(weights, scores, place);
    store_weights(ds, dp, place);
  }
  __syncthreads();  // weights are there, and v is read no more
  // A warp has the same elements of all tensors each time, so that a result may take the place of what it has read.
  const float factor = n.dropout.factor;
  weigh_few_rows<Weighs::Rows>(v, weights, dy, factor, tile);
  weigh_few_rows<Weighs::Columns>(dy, ds, k, n.scale * factor, tile);
  weigh_few_rows<Weighs::Rows>(k, ds, q, n.scale * factor, tile);
  __syncthreads();
  store_few_rows<width>(static_cast<T*>(grads.dv) + head.v(n), n.v_step, n.columns, n.depth, v, tile);
  store_few_rows<width>(static_cast<T*>(grads.dq) + head.q(n), n.q_step, n.rows, n.depth, dy, tile);
  store_few_rows<width>(static_cast<T*>(grads.dk) + head.k(n), n.k_step, n.columns, n.depth, k, tile);
}

template <typename Launch>
cudaError_t with_constants(const AttentionShape& n, const FewRowsWidth& width, Launch launch) {
  return with_16_bit_float(n.type, [&](auto* element) {
    return width.as_constant([&](auto elements) {
      return has_forms(n) ? launch(element, elements, std::true_type()) : launch(element, elements, std::false_type());
    });
  });
}

}  // namespace

cudaError_t attention_few_rows(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  const FewRows tile(n.rows, n.columns, n.depth);
  FewRowsWidth width(n.depth);
  width.add(call.q, n.q_step);
  width.add(call.k, n.k_step);
  width.add(call.v, n.v_step);
  width.add(call.y, n.depth);
  return with_constants(n, width, [&]<typename T>(T*, auto elements, auto forms) {
    return launch_mma(few_rows_kernel<elements(), forms(), T>, n.batch * n.heads, 32 * few_warps, tile.forward_bytes(),
                      stream, n, call, tile);
  });
}

cudaError_t attention_grad_few_rows(const AttentionShape& n, const AttentionGradCall& grads, cudaStream_t stream) {
  const FewRows tile(n.rows, n.columns, n.depth);
  FewRowsWidth width(n.depth);
  width.add(grads.q, n.q_step);
  width.add(grads.dq, n.q_step);
  width.add(grads.k, n.k_step);
  width.add(grads.dk, n.k_step);
  width.add(grads.v, n.v_step);
  width.add(grads.dv, n.v_step);
  width.add(grads.dy, n.depth);
  return with_constants(n, width, [&]<typename T>(T*, auto elements, auto forms) {
    return launch_mma(few_rows_grad_kernel<elements(), forms(), T>, n.batch * n.heads, 32 * few_warps,
                      tile.gradient_bytes(), stream, n, grads, tile);
  });
}

}  // namespace plimsoll::cuda
