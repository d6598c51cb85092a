#include "kernels/cuda/attention/attention_tiles.cuh"

// Serves attention ("flash"). Reads q and writes y once; k and v are read once for each tile of rows, by neighbouring
// blocks from the cache. A block owns a tile of rows of one head and walks over the columns with a running maximum and
// sum for each row.

namespace plimsoll::cuda {
namespace {

// Over the eight threads of a row.
__device__ float row_sum(float value) {
  for (int distance = 1; distance < row_lanes; distance *= 2) value += __shfl_xor_sync(whole_warp, value, distance);
  return value;
}
__device__ float row_max(float value) {
  for (int distance = 1; distance < row_lanes; distance *= 2)
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, distance));
  return value;
}

// Shared memory: the tiles of q, k and v, and the probabilities.
template <int D>
constexpr size_t forward_floats = 3 * Tile<D>::floats + Tile<D>::scores;

template <int D, typename T>
__global__ void __launch_bounds__(Tile<D>::threads)
    attention_kernel(AttentionShape n, AttentionCall call, int64_t row_tiles) {
  extern __shared__ float4 shared[];
  float *q_tile = reinterpret_cast<float*>(shared), *k_tile = q_tile + Tile<D>::floats;
  float *v_tile = k_tile + Tile<D>::floats, *weights = v_tile + Tile<D>::floats;
  const T *q = static_cast<const T*>(call.q), *k = static_cast<const T*>(call.k), *v = static_cast<const T*>(call.v);
  const int64_t number = blockIdx.x / row_tiles, first = blockIdx.x % row_tiles * Tile<D>::rows;
  const Head head{number / n.heads, number % n.heads};
  const int own = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
  const int64_t row = first + own;

  load_tile<D>(q_tile, q + head.q(n), n.q_step, first, n.rows, n.depth);
  float largest = -INFINITY, sum = 0.0f;
  float4 sums[Tile<D>::quads] = {};
  const Others met = columns_met<D>(n, first);
  for (int64_t column = met.first; column < met.end; column += Tile<D>::rows) {
    __syncthreads();
    load_tile<D>(k_tile, k + head.k(n), n.k_step, column, n.columns, n.depth);
    load_tile<D>(v_tile, v + head.v(n), n.v_step, column, n.columns, n.value_depth);
    __syncthreads();
    float scores[Tile<D>::shares];
    multiply_rows<D>(scores, q_tile, k_tile, n.depth);
    float largest_here = largest;
#pragma unroll
    for (int j = 0; j < Tile<D>::shares; ++j) {
      scores[j] = head.score(n, row, column + lane + row_lanes * j, scores[j]);
      largest_here = fmaxf(largest_here, scores[j]);
    }
    largest_here = row_max(largest_here);
    const bool nothing = largest_here == -INFINITY;
    const float rescale = nothing ? 1.0f : expf(largest - largest_here);
    float sum_here = 0.0f;
#pragma unroll
    for (int j = 0; j < Tile<D>::shares; ++j) {
      const int c = lane + row_lanes * j;
      const float probability = nothing ? 0.0f : expf(scores[j] - largest_here);
      sum_here += probability;
      weights[own * Tile<D>::score_pitch + c] =
          probability == 0.0f ? 0.0f : probability * kept_factor(n, head, row, column + c);
    }
    sum = sum * rescale + row_sum(sum_here);
    largest = largest_here;
#pragma unroll
    for (int i = 0; i < Tile<D>::quads; ++i) {
      sums[i].x *= rescale;
      sums[i].y *= rescale;
      sums[i].z *= rescale;
      sums[i].w *= rescale;
    }
    __syncwarp();  // a row's weights are written and read by one warp
    add_weighted<D>(sums, weights, v_tile);
  }
  if (row >= n.rows) return;
  const WithSink total(call.sinks, head.h, largest, sum);
  store_row<D>(static_cast<T*>(call.y) + head.y(n) + row * n.heads * n.value_depth, sums,
               total.sum > 0.0f ? 1.0f / total.sum : 0.0f, n.value_depth);
  if (lane == 0) call.lse[head.lse(n, row)] = total.lse;
}

}  // namespace

cudaError_t attention(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  if (shape.batch * shape.heads * shape.rows == 0) return cudaSuccess;
  return with_f32_math(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return with_tile(shape, [&](auto depth) {
      constexpr int D = depth();
      const int64_t row_tiles = divide_up(shape.rows, Tile<D>::rows);
      return launch_tiles(attention_kernel<D, T>, shape.batch * shape.heads * row_tiles, Tile<D>::threads,
                          forward_floats<D>, stream, shape, call, row_tiles);
    });
  });
}

}  // namespace plimsoll::cuda
