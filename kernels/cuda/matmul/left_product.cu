#include "kernels/cuda/matmul/left_product.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/matmul/left_instructions.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

#include <algorithm>

// Serves matmul ("warpgroup_left"): y[b] = w x[b], as layers over the tokens of an image have it. Sums are those of the
// transposed product, columns of x by columns of w: matrix units read x as it lies, w goes to shared memory once, and
// neither needs whole words in a row of w. What is missing of a tile of x is zeros, of y is not written.

namespace plimsoll::cuda {
namespace {

// Two warpgroups make 64 columns each of all rows of a tile; a third warp asks for boxes of x.
template <int tile_rows_>
struct LeftTile {
  static constexpr int groups = 2, rows = tile_rows_, columns = groups * warpgroup_rows, product_tiles = rows / 8;
  static constexpr int step = box_depth, box_bytes = step * 128, stage_bytes = groups * box_bytes;
  static constexpr int step_bytes = rows * 128;   // of w
  static constexpr int group_bytes = rows * 128;  // that a group stages
  static constexpr int computing_threads = groups * warpgroup_threads, threads = computing_threads + warp_threads;
};

struct LeftSizes {
  int rows, depth, columns, batch;
  int down, across, steps, stages;
};

// ---- The matrix in shared memory: boxes of 64 of the depth, rows of which have 128 bytes ----

__device__ inline uint8_t* word_of(uint8_t* boxes, int step_bytes, int row, int word) {
  return boxes + word / 8 * step_bytes + row * 128 + (word % 8 ^ row % 8) * 16;
}

// Rows of w that lie one after the other: a thread has eight elements of a row, in words of `unit` elements.
template <int unit>
__device__ void load_rows(uint8_t* boxes, int step_bytes, int tile_rows, const uint16_t* w, int first_row,
                          const LeftSizes& s, int thread, int threads) {
  constexpr int together = unit == 4 ? 11 : 4;  // in flight: 196 rows of 196 are two turns
  const int words = (s.depth + 15) / 16 * 2, count = tile_rows * words;
  for (int first = thread; first < count; first += threads * together) {
    uint16_t elements[together][8];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int at = first + i * threads, row = at / words, k = at % words * 8;
#pragma unroll
      for (int e = 0; e < 8; e += unit) {
        const bool is_there = at < count && first_row + row < s.rows && k + e < s.depth;
        const uint16_t* from = w + int64_t{first_row + row} * s.depth + k + e;
        if constexpr (unit == 4) {
          const uint2 four = is_there ? *reinterpret_cast<const uint2*>(from) : uint2{};
          memcpy(elements[i] + e, &four, sizeof four);
        } else {
          elements[i][e] = is_there ? *from : uint16_t{};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int at = first + i * threads;
      uint4 whole;
      memcpy(&whole, elements[i], sizeof whole);
      if (at < count) *reinterpret_cast<uint4*>(word_of(boxes, step_bytes, at / words, at % words)) = whole;
    }
  }
}

// Rows of w that lie side by side: a thread has eight elements each of `unit` rows.
template <int unit>
__device__ void load_columns(uint8_t* boxes, int step_bytes, int tile_rows, const uint16_t* w, int first_row,
                             const LeftSizes& s, int thread, int threads) {
  const int across = tile_rows / unit, words = (s.depth + 15) / 16 * 2, count = across * words;
#pragma unroll 3
  for (int at = thread; at < count; at += threads) {
    const int row = at % across * unit, word = at / across;
    uint16_t elements[8][unit];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int k = word * 8 + e;
      const bool is_there = first_row + row < s.rows && k < s.depth;
      const uint16_t* from = w + int64_t{k} * s.rows + first_row + row;
      if constexpr (unit == 4) {
        const uint2 four = is_there ? *reinterpret_cast<const uint2*>(from) : uint2{};
        memcpy(elements[e], &four, sizeof four);
      } else {
        elements[e][0] = is_there ? *from : uint16_t{};
      }
    }
#pragma unroll
    for (int r = 0; r < unit; ++r) {
      uint16_t turned[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) turned[e] = elements[e][r];
      uint4 whole;
      memcpy(&whole, turned, sizeof whole);
      *reinterpret_cast<uint4*>(word_of(boxes, step_bytes, row + r, word)) = whole;
    }
  }
}

template <typename Tile>
__device__ void load_matrix(uint8_t* boxes, const void* w, bool is_transposed, int first_row, const LeftSizes& s) {
  const auto* from = static_cast<const uint16_t*>(w);
  const int thread = static_cast<int>(threadIdx.x);
  const auto load = [&](auto* function) {
    function(boxes, Tile::step_bytes, Tile::rows, from, first_row, s, thread, Tile::computing_threads);
  };
  const bool has_words = (is_transposed ? s.rows : s.depth) % 4 == 0;
  if (is_transposed)
    has_words ? load(load_columns<4>) : load(load_columns<1>);
  else
    has_words ? load(load_rows<4>) : load(load_rows<1>);
}

// ---- All warps ----

struct LeftPlace {
  int batch, column;
  __device__ LeftPlace(const LeftSizes& s, int tile, int columns)
      : batch(tile / s.across), column(tile % s.across * columns) {}
};

__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <typename T, typename Tile>
__device__ void multiply_step(float (&sums)[Tile::product_tiles][4], const uint8_t* x, const uint8_t* w, int sixteens,
                              bool adds) {
  constexpr uint64_t x_apart = 16 * 128 >> 4, w_apart = 16 * 2 >> 4;
  const uint64_t left = shared_matrix(x), right = shared_matrix(w);
  if (sixteens == Tile::step / 16) {
#pragma unroll
    for (int i = 0; i < Tile::step / 16; ++i)
      start_left_product<T, true, Tile::product_tiles>(sums, left + i * x_apart, right + i * w_apart, adds || i > 0);
  } else {
#pragma unroll 1
    for (int i = 0; i < sixteens; ++i)
      start_left_product<T, true, Tile::product_tiles>(sums, left + i * x_apart, right + i * w_apart, adds || i > 0);
  }
}

template <typename T, typename Tile>
__device__ void stage_sums(uint8_t* to, const float (&sums)[Tile::product_tiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads,
            warp = static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads;
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are beside each other, two below.
  uint8_t* row = to + (lane / 16 * 8 + lane % 8) * 128;
  uint8_t* at = row + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
  for (int t = 0; t + 1 < Tile::product_tiles; t += 2) {
    const uint32_t words[4] = {packed_pair<T>(sums[t][0], sums[t][1]), packed_pair<T>(sums[t][2], sums[t][3]),
                               packed_pair<T>(sums[t + 1][0], sums[t + 1][1]),
                               packed_pair<T>(sums[t + 1][2], sums[t + 1][3])};
    store_matrices_transposed(at + t * 1024, words);
  }
  if constexpr (Tile::product_tiles % 2 == 1) {
    // The last tile a second time, over itself.
    constexpr int t = Tile::product_tiles - 1;
    const uint32_t words[4] = {packed_pair<T>(sums[t][0], sums[t][1]), packed_pair<T>(sums[t][2], sums[t][3]),
                               packed_pair<T>(sums[t][0], sums[t][1]), packed_pair<T>(sums[t][2], sums[t][3])};
    store_matrices_transposed(at - lane / 16 * 1024 + t * 1024, words);
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    left_product_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, const void* w,
                        bool w_is_transposed, LeftSizes s) {
  if constexpr (!has_warpgroups) {
    __trap();
  } else {
    extern __shared__ __align__(tile_border) uint8_t shared[];
    uint8_t* const matrix = shared;
    uint8_t* const stages = matrix + s.steps * Tile::step_bytes;
    uint8_t* const staged = stages + s.stages * Tile::stage_bytes;
    auto* const full = reinterpret_cast<Barrier*>(staged + Tile::groups * Tile::group_bytes);
    Barrier* const empty = full + s.stages;
    const int thread = static_cast<int>(threadIdx.x);
    // Blocks with the same columns of x are neighbours.
    const int down = static_cast<int>(blockIdx.x) % s.down, first_row = down * Tile::rows;
    const int first_tile = static_cast<int>(blockIdx.x) / s.down, tiles_apart = static_cast<int>(gridDim.x) / s.down,
              tiles = s.batch * s.across;
    if (thread == 0) {
      for (int i = 0; i < s.stages; ++i) {
        set_up_barrier(full + i, 1);
        set_up_barrier(empty + i, Tile::groups);
      }
      show_barriers_to_copies();
    }
    if (thread == Tile::computing_threads) {
      fetch_map(x);
      fetch_map(y);
    }
    __syncthreads();
    if (thread >= Tile::computing_threads) {
      if (thread > Tile::computing_threads) return;
      RingPlace place;
      for (int tile = first_tile; tile < tiles; tile += tiles_apart) {
        const LeftPlace at(s, tile, Tile::columns);
        for (int k = 0; k < s.steps; ++k, place.advance(s.stages)) {
          wait_at(empty + place.stage, place.parity ^ 1);
          arrive_with_copies(full + place.stage, Tile::stage_bytes);
          for (int group = 0; group < Tile::groups; ++group)
            copy_box(stages + place.stage * Tile::stage_bytes + group * Tile::box_bytes, x,
                     at.column + group * warpgroup_rows, 0, k * Tile::step, at.batch, full + place.stage);
        }
      }
      return;
    }
    const int group = thread / warpgroup_threads;
    const bool leads = thread % warpgroup_threads == 0;
    uint8_t* const own = staged + group * Tile::group_bytes;
    load_matrix<Tile>(matrix, w, w_is_transposed, first_row, s);
    show_to_matrix_units();
    meet(1, Tile::computing_threads);
    RingPlace place;
    for (int tile = first_tile; tile < tiles; tile += tiles_apart) {
      const LeftPlace at(s, tile, Tile::columns);
      float sums[Tile::product_tiles][4];
      int before = -1;  // the stage whose products may still be under way
      for (int k = 0; k < s.steps; ++k, place.advance(s.stages)) {
        wait_at(full + place.stage, place.parity);
        const uint8_t* from = stages + place.stage * Tile::stage_bytes + group * Tile::box_bytes;
        begin_products();
        multiply_step<T, Tile>(sums, from, matrix + k * Tile::step_bytes,
                               min(Tile::step / 16, (s.depth - k * Tile::step + 15) / 16), k > 0);
        commit_products();
        wait_for_products<1>();
        if (leads && before >= 0) arrive_at(empty + before);
        before = place.stage;
      }
      wait_for_products<0>();
      settle(sums);
      if (leads) {
        arrive_at(empty + before);
        wait_for_stored_boxes();
      }
      meet(2 + group, warpgroup_threads);
      stage_sums<T, Tile>(own, sums);
      show_to_matrix_units();
      meet(2 + group, warpgroup_threads);
      if (leads) store_box(own, y, at.column + group * warpgroup_rows, 0, first_row, at.batch);
    }
    if (leads) wait_for_stored_boxes();
  }
}

template <typename T, int tile_rows>
cudaError_t launch(const LeftProductCall& call, cudaStream_t stream) {
  using Tile = LeftTile<tile_rows>;
  const LeftProductTiles& t = call.tiles;
  const auto count = [](int64_t n) { return static_cast<int>(n); };
  const LeftSizes sizes{count(t.rows),   count(t.depth),    count(t.columns), count(t.batch),
                        count(t.down()), count(t.across()), count(t.steps()), count(t.stages())};
  CUtensorMap x, y;
  if (cudaError_t error = map_rows(x, call.x, t.batch, t.depth, 1, t.columns, t.columns, Tile::step);
      error != cudaSuccess)
    return error;
  if (cudaError_t error = map_rows(y, call.y, t.batch, t.rows, 1, t.columns, t.columns, Tile::rows);
      error != cudaSuccess)
    return error;
  auto* kernel = left_product_kernel<T, Tile>;
  const int shared_bytes = count(
      t.matrix_bytes() + t.stages() * (t.stage_bytes() + 2 * static_cast<int64_t>(sizeof(Barrier))) + t.staged_bytes());
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      error != cudaSuccess)
    return error;
  const int64_t across = std::min<int64_t>(std::max<int64_t>(call.multiprocessors / t.down(), 1), t.batch * t.across());
  kernel<<<static_cast<unsigned>(across * t.down()), Tile::threads, static_cast<size_t>(shared_bytes), stream>>>(
      x, y, call.w, call.w_is_transposed, sizes);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const LeftProductCall& call, cudaStream_t stream) {
  switch (call.tiles.tile_rows) {
    case 96: return launch<T, 96>(call, stream);
    case 128: return launch<T, 128>(call, stream);
    case 192: return launch<T, 192>(call, stream);
    case 200: return launch<T, 200>(call, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t left_product(const LeftProductCall& call, cudaStream_t stream) {
  return call.type == Scalar::BF16 ? launch<bf16>(call, stream) : launch<f16>(call, stream);
}

}  // namespace plimsoll::cuda
