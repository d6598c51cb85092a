#pragma once

// Tiles of scores where columns are owned, in shared memory as the copy engine brings and takes them: what a mask with
// rows adds, and dS. They are made of boxes of 128 bytes of 64 rows, in which words of 16 bytes of eight rows are
// swizzled as in warpgroup.cuh.

#include "kernels/cuda/attention/attention_warpgroup.cuh"
#include "kernels/cuda/common/matrix_boxes.cuh"
#include "kernels/cuda/common/packed.cuh"

namespace plimsoll::cuda {

// What the mask adds to this thread's elements (t, e) of a tile [64 rows, columns of the block].
template <typename M>
class MaskOfTile {
 public:
  __device__ explicit MaskOfTile(const void* tile) {
    constexpr int box = box_bytes / 2;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    // Threads 8 m to 8 m + 7 have the rows of matrix m: those of product t or t + 1, and the first or last 8 columns.
    const int row = lane / 16 * 8 + lane % 8, word = warp % 4 * 2 + lane / 8 % 2;
    const M* const first = static_cast<const M*>(tile) + warp / 4 * 64 * box + row * box + (word ^ lane % 8) * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t words[4];
      load_matrices_transposed(words, first + 16 * i * box);
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs_[4 * i + j].word[0] = words[j];
    }
  }
  __device__ float operator()(int t, int e) const { return pairs_[2 * t + e / 2][e % 2]; }

 private:
  Packed<M, 2> pairs_[16];  // [product, half of the columns], of two rows
};

template <>
class MaskOfTile<float> {
 public:
  __device__ explicit MaskOfTile(const void* tile) : tile_(static_cast<const float*>(tile)) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int row = lane % 4 * 2, word = warp % 2 * 4 + lane / 16;
    place_ = warp / 2 * 64 * box + row * box + (word ^ row) * 4 + lane / 4 % 4;
  }
  // The next row's words are swizzled otherwise, and 8 columns are two words.
  __device__ float operator()(int t, int e) const {
    return tile_[(place_ ^ (e % 2 * 4 + e / 2 * 8)) + e % 2 * box + 8 * t * box];
  }

 private:
  static constexpr int box = box_bytes / 4;
  const float* tile_;
  int place_;
};

// Writes a warp's 16 columns of dS into the block's tile [64 rows, columns].
template <typename Tile, typename T>
__device__ void store_rows_of_ds(T* tile, const Weights<Tile>& ds) {
  constexpr int box = box_bytes / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = lane / 16 * 8 + lane % 8, word = warp % 4 * 2 + lane / 8 % 2;
  T* const first = tile + warp / 4 * 64 * box + row * box + (word ^ lane % 8) * 8;
#pragma unroll
  for (int k = 0; k < Tile::others / 16; ++k) {
    const uint32_t(&words)[4] = ds.at[k].at;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(first + 16 * k * box)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_NARROW_ROWS_PRODUCT(type)                                                                   \
  asm volatile(                                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 1;\n}" \
      : PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3)                               \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// sum (+)= left * right, left being [64, 16] and right [16, 32] in shared memory; sum is 4 tiles of 64 x 8.
template <typename T>
__device__ void start_narrow_rows_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_NARROW_ROWS_PRODUCT("bf16");
  else
    PLIMSOLL_NARROW_ROWS_PRODUCT("f16");
}
#undef PLIMSOLL_NARROW_ROWS_PRODUCT
#undef PLIMSOLL_TILE

// Starts dq = dS * k for half of the head's elements, at which the matrix k begins.
template <typename Tile, typename T>
__device__ void start_dq_of_rows(Sums<1, Tile::share_tiles>& dq, const T* ds_tile, uint64_t k) {
  const uint64_t ds = shared_matrix(ds_tile);
  begin_products();
#pragma unroll
  for (int column = 0; column < Tile::own; column += 16) {
    const uint64_t left = ds + matrix_step<Tile::others>(0, column);
    const uint64_t right = k + matrix_step<Tile::own, Tile::box>(column, 0);
    if constexpr (Tile::share_tiles == 2)
      start_half_rows_product<T>(dq[0], left, right, column > 0);
    else
      start_narrow_rows_product<T>(dq[0], left, right, column > 0);
  }
  commit_products();
}

}  // namespace plimsoll::cuda
