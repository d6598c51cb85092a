#include "kernels/cuda/attention/attention_tiles.cuh"

// Serves attention_grad ("flash"). Each of two kernels reads what it owns once, and what it walks over once for each of
// its tiles. With P the probabilities, made again from lse, Z their dropout factors, dP = Z * (dy v^T) and delta = dy .
// y a row:
//   dv = (Z * P)^T dy,  dS = scale * P * (dP - delta),  dq = dS k,  dk = dS^T q.
// One kernel owns rows and sums dq, the other owns columns and sums dk and dv over the rows of all heads that share
// them: each sum has one owner and one order.

namespace plimsoll::cuda {
namespace {

// One warp per row of a head.
template <typename T>
__global__ void __launch_bounds__(256) delta_kernel(AttentionShape n, float* delta, const T* y, const T* dy) {
  const int64_t number = team_row<RowTeam::Warp>();  // as in lse
  if (number >= n.batch * n.heads * n.rows) return;
  const int64_t row = number % n.rows;
  const Head head{number / n.rows / n.heads, number / n.rows % n.heads};
  const int64_t start = head.y(n) + row * n.heads * n.value_depth;
  float sum = 0.0f;
  for (int64_t d = team_thread<RowTeam::Warp>(); d < n.value_depth; d += warp_threads)
    sum += widen(y[start + d]) * widen(dy[start + d]);
  sum = warp_reduce(sum, Add());
  if (team_thread<RowTeam::Warp>() == 0) delta[number] = sum;
}

struct RowConstants {
  float lse, delta;

  __device__ RowConstants(const AttentionShape& n, const Head& head, int64_t row, const AttentionGradCall& call)
      : lse(row < n.rows ? call.lse[head.lse(n, row)] : -INFINITY),
        delta(row < n.rows ? call.delta[head.lse(n, row)] : 0.0f) {}
};

struct PairGradient {
  float weight, score;  // Z * P and dS

  // From q . k and dy . v of a row and a column.
  __device__ PairGradient(const AttentionShape& n, const Head& head, const RowConstants& constants, int64_t row,
                          int64_t column, float product, float dy_v)
      : weight(0.0f), score(0.0f) {
    const float raw = head.score(n, row, column, product);
    if (raw == -INFINITY || constants.lse < closed_lse) return;
    const float probability = expf(raw - constants.lse), keep = kept_factor(n, head, row, column);
    weight = keep * probability;
    score = n.scale * cap_slope(n, product) * probability * (keep * dy_v - constants.delta);
  }
};

// Shared memory of both kernels: the tiles of q, dy, k and v, and the weights of one or two sums.
template <int D>
constexpr size_t backward_floats = 4 * Tile<D>::floats + 2 * Tile<D>::scores;

template <int D>
struct Tiles {
  float *q, *dy, *k, *v, *weights, *scores;

  __device__ explicit Tiles(float* shared)
      : q(shared),
        dy(q + Tile<D>::floats),
        k(dy + Tile<D>::floats),
        v(k + Tile<D>::floats),
        weights(v + Tile<D>::floats),
        scores(weights + Tile<D>::scores) {}

  template <typename T>
  __device__ void load_rows(const AttentionShape& n, const AttentionGradCall& call, const Head& head, int64_t first) {
    load_tile<D>(q, static_cast<const T*>(call.q) + head.q(n), n.q_step, first, n.rows, n.depth);
    load_tile<D>(dy, static_cast<const T*>(call.dy) + head.y(n), n.heads * n.value_depth, first, n.rows, n.value_depth);
  }
  template <typename T>
  __device__ void load_columns(const AttentionShape& n, const AttentionGradCall& call, const Head& head,
                               int64_t first) {
    load_tile<D>(k, static_cast<const T*>(call.k) + head.k(n), n.k_step, first, n.columns, n.depth);
    load_tile<D>(v, static_cast<const T*>(call.v) + head.v(n), n.v_step, first, n.columns, n.value_depth);
  }
};

template <int D, typename T>
__global__ void __launch_bounds__(Tile<D>::threads)
    dq_kernel(AttentionShape n, AttentionGradCall call, int64_t row_tiles) {
  extern __shared__ float4 shared[];
  Tiles<D> tiles(reinterpret_cast<float*>(shared));
  const int64_t number = blockIdx.x / row_tiles, first = blockIdx.x % row_tiles * Tile<D>::rows;
  const Head head{number / n.heads, number % n.heads};
  const int own = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
  const int64_t row = first + own;
  const RowConstants constants(n, head, row, call);
  tiles.template load_rows<T>(n, call, head, first);
  float4 dq[Tile<D>::quads] = {};
  const Others met = columns_met<D>(n, first);
  for (int64_t column = met.first; column < met.end; column += Tile<D>::rows) {
    __syncthreads();
    tiles.template load_columns<T>(n, call, head, column);
    __syncthreads();
    float products[Tile<D>::shares], dy_v[Tile<D>::shares];
    multiply_rows<D>(products, tiles.q, tiles.k, n.depth);
    multiply_rows<D>(dy_v, tiles.dy, tiles.v, n.value_depth);
#pragma unroll
    for (int j = 0; j < Tile<D>::shares; ++j) {
      const int c = lane + row_lanes * j;
      const PairGradient pair(n, head, constants, row, column + c, products[j], dy_v[j]);
      tiles.scores[own * Tile<D>::score_pitch + c] = pair.score;
    }
    __syncwarp();  // a row's scores are written and read by one warp
    add_weighted<D>(dq, tiles.scores, tiles.k);
  }
  if (row < n.rows) store_row<D>(static_cast<T*>(call.dq) + head.q(n) + row * n.q_step, dq, 1.0f, n.depth);
}

template <int D, typename T>
__global__ void __launch_bounds__(Tile<D>::threads)
    dk_dv_kernel(AttentionShape n, AttentionGradCall call, int64_t column_tiles) {
  extern __shared__ float4 shared[];
  Tiles<D> tiles(reinterpret_cast<float*>(shared));
  const int64_t number = blockIdx.x / column_tiles, first = blockIdx.x % column_tiles * Tile<D>::rows;
  const int64_t b = number / n.kv_heads, kv_head = number % n.kv_heads, shared_by = n.heads / n.kv_heads;
  const int own = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
  const int64_t column = first + own;
  const Head any{b, kv_head * shared_by};
  tiles.template load_columns<T>(n, call, any, first);
  const Others met = rows_met<D>(n, first);
  float4 dk[Tile<D>::quads] = {}, dv[Tile<D>::quads] = {};
  for (int64_t h = kv_head * shared_by; h < (kv_head + 1) * shared_by; ++h) {
    const Head head{b, h};
    for (int64_t row = met.first; row < met.end; row += Tile<D>::rows) {
      __syncthreads();
      tiles.template load_rows<T>(n, call, head, row);
      __syncthreads();
      float products[Tile<D>::shares], dy_v[Tile<D>::shares];
      multiply_rows<D>(products, tiles.k, tiles.q, n.depth);
      multiply_rows<D>(dy_v, tiles.v, tiles.dy, n.value_depth);
#pragma unroll
      for (int j = 0; j < Tile<D>::shares; ++j) {
        const int r = lane + row_lanes * j;
        const RowConstants constants(n, head, row + r, call);
        const PairGradient pair(n, head, constants, row + r, column, products[j], dy_v[j]);
        tiles.weights[own * Tile<D>::score_pitch + r] = pair.weight;
        tiles.scores[own * Tile<D>::score_pitch + r] = pair.score;
      }
      __syncwarp();  // a column's weights are written and read by one warp
      add_weighted<D>(dv, tiles.weights, tiles.dy);
      add_weighted<D>(dk, tiles.scores, tiles.q);
    }
  }
  if (column >= n.columns) return;
  store_row<D>(static_cast<T*>(call.dk) + any.k(n) + column * n.k_step, dk, 1.0f, n.depth);
  store_row<D>(static_cast<T*>(call.dv) + any.v(n) + column * n.v_step, dv, 1.0f, n.value_depth);
}

template <int D, typename T>
cudaError_t launch_grads(const AttentionShape& shape, const AttentionGradCall& call, cudaStream_t stream) {
  const int64_t row_tiles = divide_up(shape.rows, Tile<D>::rows), row_blocks = shape.batch * shape.heads * row_tiles;
  if (row_blocks > 0) {
    const int64_t deltas = shape.batch * shape.heads * shape.rows;
    delta_kernel<<<static_cast<unsigned>(divide_up(deltas, 256 / warp_threads)), 256, 0, stream>>>(
        shape, call.delta, static_cast<const T*>(call.y), static_cast<const T*>(call.dy));
    const cudaError_t error =
        launch_tiles(dq_kernel<D, T>, row_blocks, Tile<D>::threads, backward_floats<D>, stream, shape, call, row_tiles);
    if (error != cudaSuccess) return error;
  }
  const int64_t column_tiles = divide_up(shape.columns, Tile<D>::rows);
  const int64_t column_blocks = shape.batch * shape.kv_heads * column_tiles;
  if (column_blocks == 0) return cudaSuccess;
  return launch_tiles(dk_dv_kernel<D, T>, column_blocks, Tile<D>::threads, backward_floats<D>, stream, shape, call,
                      column_tiles);
}

}  // namespace

cudaError_t attention_grad(const AttentionShape& shape, const AttentionGradCall& call, cudaStream_t stream) {
  return with_f32_math(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return with_tile(shape, [&](auto depth) { return launch_grads<depth(), T>(shape, call, stream); });
  });
}

}  // namespace plimsoll::cuda
