#include "kernels/cuda/matmul/weight_gradient.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/partial_sums.cuh"
#include "kernels/cuda/matmul/weight_gradient_tile.cuh"

// Serves linear_dw ("warpgroup_bgrad"): dw = left^T right, and dbias of the dy that a block loads for its products
// anyway: blocks with the same columns of dy sum them of the steps by turns. Sums are f32; partial ones are added in a
// fixed order by a second launch.

namespace plimsoll::cuda {
namespace {

// dw, to which this adds the addend.
template <typename Y>
struct Destination {
  Y* dw;
  const Y* addend;
  int rows, columns;

  // Two neighbours of a row. Columns are multiples of 8.
  __device__ void store(int row, int column, float first, float second) const {
    if (row >= rows || column >= columns) return;
    const int64_t at = int64_t{row} * columns + column;
    Vector<Y, 2> two;
    if (addend) {
      two = load_vector<2>(addend + at);
      first += widen(two.at[0]);
      second += widen(two.at[1]);
    }
    two.at[0] = narrow<Y>(first);
    two.at[1] = narrow<Y>(second);
    store_vector(dw + at, two);
  }
  // Thread `thread` of a tile's computing threads has four sums of each product tile: of two rows, 8 apart.
  template <typename Tile>
  __device__ void store_sums(int tile_row, int tile_column, int thread, int product_tile,
                             const float (&sums)[4]) const {
    const int row = tile_row * Tile::rows + thread / 32 * 16 + thread % 32 / 4;
    const int column = tile_column * Tile::columns + product_tile * 8 + thread % 4 * 2;
    store(row, column, sums[0], sums[1]);
    store(row + 8, column, sums[2], sums[3]);
  }
};

template <typename Tile, typename T, typename Y>
__device__ void work_on_tile(const CUtensorMap& left, const CUtensorMap& right, const WeightGradientTiles& t,
                             float* workspace, const Destination<Y>& to) {
  extern __shared__ uint8_t shared[];
  const Ring<Tile> ring(first_tile_border(shared));
  const BlockWork work(t);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) ring.create();
  if (thread == Tile::computing_threads) {
    fetch_map(left);
    fetch_map(right);
  }
  __syncthreads();
  if (thread >= Tile::computing_threads) {
    give_registers<Tile::other_registers>();
    const int warp = (thread - Tile::computing_threads) / warp_threads;
    if (thread == Tile::computing_threads)
      copy_tiles(ring, work, t, left, right);
    else if (warp > 0)
      sum_columns<Tile, T>(ring, work, t, warp - 1, workspace + t.partial_elements());
  } else {
    take_registers<Tile::computing_registers>();
    float sums[Tile::product_tiles][4] = {};
    multiply<Tile, T>(ring, work, sums);
    // Partial sums lie so that the threads of a warp store neighbours.
    float4* partial = reinterpret_cast<float4*>(workspace) + int64_t{blockIdx.x} * Tile::words + thread;
#pragma unroll
    for (int i = 0; i < Tile::product_tiles; ++i)
      if (t.parts > 1)
        __stcg(partial + i * Tile::computing_threads, make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
      else
        to.template store_sums<Tile>(work.tile_row, work.tile_column, thread, i, sums[i]);
  }
  let_next_launch_begin();
}

template <typename Tile, typename T, typename Y>
__global__ void __launch_bounds__(Tile::threads, 1)
    weight_gradient_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                           WeightGradientTiles t, float* workspace, Destination<Y> to) {
  if constexpr (has_warpgroups)
    work_on_tile<Tile, T>(left, right, t, workspace, to);
  else
    __trap();
}

// What the second launch adds: the first blocks make dbias, the others dw.
struct Partials {
  const float *dw, *dbias;
  int parts, down, tiles;  // of dw
  int word_threads;        // that share the parts of a word of dw
  int bias_partials, bias_elements, bias_blocks, bias_across;
};

// As many as have something to add and find room on the card together: a thread that adds 132 parts waits 20 us for
// them.
int threads_of_word(int64_t parts, int64_t words) {
  constexpr int most = 64;
  constexpr int64_t most_threads = 256 * combine_threads;
  int threads = 1;
  while (threads < most && 2 * threads <= parts && 2 * threads * words <= most_threads) threads *= 2;
  return threads;
}

template <typename Tile, typename Y>
__global__ void __launch_bounds__(combine_threads, has_warpgroups ? 2 : 1)
    combine_kernel(Partials p, Y* dbias, Destination<Y> to) {
  if constexpr (has_warpgroups) {
    wait_for_launch_before();
    if (static_cast<int>(blockIdx.x) < p.bias_blocks) {
      combine_partials(p.dbias, p.bias_partials, p.bias_elements, p.bias_across, Add{}, 0.0f,
                       [&](int64_t column, float total) { dbias[column] = narrow<Y>(total); });
      return;
    }
    __shared__ float4 of_threads[combine_threads];
    const int thread = static_cast<int>(threadIdx.x), across = combine_threads / p.word_threads, row = thread / across;
    const int word = (static_cast<int>(blockIdx.x) - p.bias_blocks) * across + thread % across;
    const int tile = word / Tile::words, at = word % Tile::words;
    float sums[4] = {};
    const auto add = [&](float4 four) { sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w; };
    if (tile < p.tiles) {
      const float4* from = reinterpret_cast<const float4*>(p.dw) + word;
#pragma unroll 4
      for (int part = row; part < p.parts; part += p.word_threads)
        add(__ldcg(from + int64_t{part} * p.tiles * Tile::words));
    }
    for (int rows = p.word_threads / 2; rows > 0; rows /= 2) {
      if (row < 2 * rows) of_threads[thread] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      __syncthreads();
      if (row < rows) add(of_threads[thread + rows * across]);
      __syncthreads();
    }
    if (row == 0 && tile < p.tiles)
      to.template store_sums<Tile>(tile % p.down, tile / p.down, at % Tile::computing_threads,
                                   at / Tile::computing_threads, sums);
  } else {
    __trap();
  }
}

template <typename Tile, typename T, typename Y>
cudaError_t launch(const WeightGradientCall& call, cudaStream_t stream) {
  const WeightGradientTiles& t = call.tiles;
  const Destination<Y> to{static_cast<Y*>(call.dw), static_cast<const Y*>(call.addend), static_cast<int>(t.sizes.rows),
                          static_cast<int>(t.sizes.columns)};
  CUtensorMap left, right;
  if (cudaError_t error = map_matrix(left, call.left, t.sizes.depth, t.sizes.rows, gradient_step); error != cudaSuccess)
    return error;
  if (cudaError_t error = map_matrix(right, call.right, t.sizes.depth, t.sizes.columns, gradient_step);
      error != cudaSuccess)
    return error;
  auto* kernel = weight_gradient_kernel<Tile, T, Y>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared_bytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(t.blocks()), Tile::threads, Tile::shared_bytes, stream>>>(left, right, t,
                                                                                           call.workspace, to);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;

  const int64_t bias_partials = t.bias_partials(), bias_elements = t.sizes.bias_elements();
  const int64_t dw_words = t.parts > 1 ? t.tiles() * Tile::words : 0;
  const int word_threads = threads_of_word(t.parts, dw_words);
  const Partials partials{.dw = call.workspace,
                          .dbias = call.workspace + t.partial_elements(),
                          .parts = static_cast<int>(t.parts),
                          .down = static_cast<int>(t.down()),
                          .tiles = static_cast<int>(t.tiles()),
                          .word_threads = word_threads,
                          .bias_partials = static_cast<int>(bias_partials),
                          .bias_elements = static_cast<int>(bias_elements),
                          .bias_blocks = static_cast<int>(combining_blocks(bias_partials, bias_elements)),
                          .bias_across = combined_columns(bias_partials)};
  const unsigned dw_blocks = blocks_for(dw_words * word_threads, combine_threads);
  const unsigned blocks = static_cast<unsigned>(partials.bias_blocks) + dw_blocks;
  return launch_early(combine_kernel<Tile, Y>, blocks, combine_threads, stream, partials, static_cast<Y*>(call.dbias),
                      to);
}

template <typename Tile, typename T>
cudaError_t launch_tile(const WeightGradientCall& call, cudaStream_t stream) {
  return call.y_type == Scalar::F32 ? launch<Tile, T, float>(call, stream) : launch<Tile, T, T>(call, stream);
}

template <typename T>
cudaError_t launch(const WeightGradientCall& call, cudaStream_t stream) {
  switch (call.tiles.tile_columns) {
    case 96: return launch_tile<GradientTile<2, 96>, T>(call, stream);
    case 256: return launch_tile<GradientTile<2, 256>, T>(call, stream);
    default:
      return call.tiles.tile_rows == 128 ? launch_tile<GradientTile<2, 192>, T>(call, stream)
                                         : launch_tile<GradientTile<3, 192>, T>(call, stream);
  }
}

}  // namespace

cudaError_t weight_gradient(const WeightGradientCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
