#include "kernels/cuda/matmul/left_gradient.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/matmul/left_instructions.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

// Serves matmul_sum ("warpgroup"): dw = sum over b of dy[b] x[b]^T and the sums of the rows of dy, which are a
// column of the same products. Sums are f32; those of parts of the batch are added in a fixed order by a second launch.

namespace plimsoll::cuda {
namespace {

struct Tile {
  static constexpr int groups = 2, rows = groups * warpgroup_rows, depth = 200, product_tiles = depth / 8;
  static constexpr int step = box_depth, row_bytes = step * 2, left_bytes = rows * row_bytes,
                       stage_bytes = left_bytes + depth * row_bytes, stages = 5, readers = groups;
  static constexpr int computing_threads = groups * warpgroup_threads, threads = computing_threads + warp_threads;
  static constexpr int words = product_tiles * computing_threads;  // of four sums each
  static constexpr int shared_bytes = ring_bytes<stages, stage_bytes>;
  static_assert(rows == LeftGradientTiles::tile_rows && depth == LeftGradientTiles::tile_depth);
};

struct Sizes {
  int rows, depth, columns, batch;
  int down, across, used_depth, row_steps, steps, parts;
};

// Rows of a tile of x that copies leave: one of ones, then zeros.
template <typename T>
__device__ void fill_last_rows(const Ring<Tile>& ring, int used_depth) {
  constexpr uint32_t ones = std::is_same_v<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
  constexpr int row_words = Tile::row_bytes / 4;
  const int count = (Tile::depth - used_depth) * row_words;
  for (int stage = 0; stage < Tile::stages; ++stage) {
    auto* rows = reinterpret_cast<uint32_t*>(ring.at(stage) + Tile::left_bytes + used_depth * Tile::row_bytes);
    for (int at = static_cast<int>(threadIdx.x); at < count; at += Tile::threads) rows[at] = at < row_words ? ones : 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(Tile::threads, 1)
    left_gradient_kernel(const __grid_constant__ CUtensorMap dy, const __grid_constant__ CUtensorMap x, Sizes s,
                         float* workspace) {
  if constexpr (!has_warpgroups) {
    __trap();
  } else {
    extern __shared__ uint8_t shared[];
    const Ring<Tile> ring(first_tile_border(shared));
    const int thread = static_cast<int>(threadIdx.x), tiles = s.down * s.across;
    const int part = static_cast<int>(blockIdx.x) / tiles, tile = static_cast<int>(blockIdx.x) % tiles;
    const int first_row = tile % s.down * Tile::rows, first_depth = tile / s.down * s.used_depth;
    const auto first_step = static_cast<int>(int64_t{s.steps} * part / s.parts),
               end_step = static_cast<int>(int64_t{s.steps} * (part + 1) / s.parts);
    if (thread == 0) ring.create();
    if (thread == Tile::computing_threads) {
      fetch_map(dy);
      fetch_map(x);
    }
    fill_last_rows<T>(ring, s.used_depth);
    show_to_matrix_units();
    __syncthreads();
    if (thread >= Tile::computing_threads) {
      if (thread > Tile::computing_threads) return;
      StagePlace<Tile::stages> place;
      for (int step = first_step; step < end_step; ++step, place.advance()) {
        const int batch = step / s.row_steps, column = step % s.row_steps * Tile::step;
        Barrier* full = ring.full + place.stage;
        wait_at(ring.empty + place.stage, place.parity ^ 1);
        arrive_with_copies(full, Tile::left_bytes + s.used_depth * Tile::row_bytes);
        copy_box(ring.at(place.stage), dy, column, 0, first_row, batch, full);
        copy_box(ring.at(place.stage) + Tile::left_bytes, x, column, 0, first_depth, batch, full);
      }
      return;
    }
    const int group = thread / warpgroup_threads;
    const bool leads = thread % warpgroup_threads == 0;
    float sums[Tile::product_tiles][4] = {};
    StagePlace<Tile::stages> place;
    int before = -1;  // the stage whose products may still be under way
    for (int step = first_step; step < end_step; ++step, place.advance()) {
      wait_at(ring.full + place.stage, place.parity);
      constexpr uint64_t apart = 16 * 2 >> 4;
      const uint8_t* from = ring.at(place.stage);
      const uint64_t left = shared_matrix(from + group * warpgroup_rows * Tile::row_bytes),
                     right = shared_matrix(from + Tile::left_bytes);
      begin_products();
#pragma unroll
      for (int i = 0; i < Tile::step / 16; ++i)
        start_left_product<T, false, Tile::product_tiles>(sums, left + i * apart, right + i * apart);
      commit_products();
      wait_for_products<1>();
      if (leads && before >= 0) arrive_at(ring.empty + before);
      before = place.stage;
    }
    wait_for_products<0>();
    settle(sums);
    const int warp_row = first_row + thread / warp_threads * 16;
    float4* to = reinterpret_cast<float4*>(workspace) + int64_t{blockIdx.x} * Tile::words + thread;
#pragma unroll
    for (int i = 0; i < Tile::product_tiles; ++i)
      if (warp_row < s.rows && i * 8 <= s.used_depth)
        __stcg(to + i * Tile::computing_threads, make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
    let_next_launch_begin();
  }
}

// Threads of a warp have neighbouring words of a tile, the warps of a block every eighth part of these.
inline constexpr int combining_warps = 8;

template <typename Y>
__global__ void __launch_bounds__(combining_warps* warp_threads)
    combine_kernel(const float* workspace, Sizes s, Y* dw, Y* row_sums) {
  __shared__ float4 of_warps[combining_warps][warp_threads];
  wait_for_launch_before();
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int word = static_cast<int>(blockIdx.x) * warp_threads + lane;
  const int tiles = s.down * s.across, tile = word / Tile::words, at = word % Tile::words;
  const int thread = at % Tile::computing_threads;  // that has made the word
  const int warp_row = tile % s.down * Tile::rows + thread / warp_threads * 16,
            row = warp_row + thread % warp_threads / 4,
            column = at / Tile::computing_threads * 8 + thread % 4 * 2;  // of the tile
  const int first_depth = tile / s.down * s.used_depth;
  // Warps of the first launch have stored words of 16 rows, where any of these is there, and of 8 columns.
  if (warp_row >= s.rows || at / Tile::computing_threads * 8 > s.used_depth) return;
  float4 sum = {};
  const float4* from = reinterpret_cast<const float4*>(workspace) + int64_t{warp} * tiles * Tile::words + word;
#pragma unroll 8
  for (int part = warp; part < s.parts; part += combining_warps, from += combining_warps * tiles * Tile::words) {
    const float4 four = __ldcg(from);
    sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp > 0) return;
  float sums[4] = {};
#pragma unroll
  for (const float4(&of_warp)[warp_threads] : of_warps) {
    const float4 four = of_warp[lane];
    sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i / 2 * 8, c = column + i % 2, d = first_depth + c;
    if (r >= s.rows) continue;
    if (c < s.used_depth && d < s.depth)
      dw[int64_t{r} * s.depth + d] = narrow<Y>(sums[i]);
    else if (c == s.used_depth && first_depth == 0 && row_sums)
      row_sums[r] = narrow<Y>(sums[i]);
  }
}

template <typename T, typename Y>
cudaError_t launch(const LeftGradientCall& call, cudaStream_t stream) {
  const LeftGradientTiles& t = call.tiles;
  const auto count = [](int64_t n) { return static_cast<int>(n); };
  const Sizes sizes{count(t.rows),     count(t.depth),        count(t.columns),     count(t.batch),   count(t.down()),
                    count(t.across()), count(t.used_depth()), count(t.row_steps()), count(t.steps()), count(t.parts)};
  CUtensorMap dy, x;
  if (cudaError_t error = map_rows(dy, call.dy, t.batch, t.rows, 1, t.columns, t.columns, Tile::rows);
      error != cudaSuccess)
    return error;
  if (cudaError_t error = map_rows(x, call.x, t.batch, t.depth, 1, t.columns, t.columns, sizes.used_depth);
      error != cudaSuccess)
    return error;
  auto* kernel = left_gradient_kernel<T>;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared_bytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(t.blocks()), Tile::threads, Tile::shared_bytes, stream>>>(dy, x, sizes,
                                                                                           call.workspace);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const unsigned blocks = static_cast<unsigned>(divide_up(t.tiles() * Tile::words, warp_threads));
  return launch_early(combine_kernel<Y>, blocks, combining_warps * warp_threads, stream, call.workspace, sizes,
                      static_cast<Y*>(call.dw), static_cast<Y*>(call.row_sums));
}

template <typename T>
cudaError_t launch(const LeftGradientCall& call, cudaStream_t stream) {
  return call.result_type == Scalar::F32 ? launch<T, float>(call, stream) : launch<T, T>(call, stream);
}

}  // namespace

cudaError_t left_gradient(const LeftGradientCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
