#pragma once

// What depthwise convolutions with sparse operands share: the product, and where pixels of 32 channels lie in shared
// memory.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/depthwise_sparse.h"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/shared_units.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

namespace plimsoll::cuda {

// sum = left * right + added. The right operand has 16 pixels of two channels in its 32 rows: thread 4 g + t of a warp
// has in word i both channels of pixel 4 i + t, column g. The left one has 16 rows of 16 pixels: the first 8 rows meet
// the first channel alone and the others the second one, so that of four neighbours two are zeros, which are left out.
// Thread 4 g + t has pixels 2 t and 2 t + 1 of row g of the first channel, the same of the second one, and pixels
// 2 t + 8 and 2 t + 9 of both.
template <typename T>
__device__ void multiply_add_sparse(float (&sum)[4], const uint32_t (&left)[4], const uint32_t (&right)[4],
                                    const float (&added)[4]) {
  constexpr uint32_t places_of_nonzeros = 0xdddd8888;  // the first and third of four, and the second and fourth
#define PLIMSOLL_SPARSE_PRODUCT(type)                                                                                 \
  asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." type "." type                            \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, %16, 0x0;"         \
               : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])                                               \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "r"(right[2]), \
                 "r"(right[3]), "f"(added[0]), "f"(added[1]), "f"(added[2]), "f"(added[3]), "r"(places_of_nonzeros))
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_SPARSE_PRODUCT("bf16");
  else
    PLIMSOLL_SPARSE_PRODUCT("f16");
#undef PLIMSOLL_SPARSE_PRODUCT
}

// Bytes from a border of 512 bytes to a unit of 8 channels of a pixel.
__device__ inline int place_in_pixel(int pixel, int unit) {
  return pixel * SparseTiles::pixel_bytes + ((unit ^ pixel / 2) & 3) * 16;
}

// A word as it is, in a way that the compiler does not put off until each product: it does not know the selector.
__device__ inline uint32_t moved_word(uint32_t word, uint32_t selector) {
  uint32_t same;
  asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(same) : "r"(word), "r"(selector));
  return same;
}

// A place for a strip of two tiles: which of them, the image there and the strip of that.
struct SparseStrip {
  int tile, image, strip;
  bool valid;

  __device__ SparseStrip(const SparseTiles& p, int of_tile, int place)
      : tile(of_tile), image(place >> p.log_places), strip(place - (image << p.log_places)), valid(strip < p.strips) {}
};

// The first image of a tile, and its first column of results.
struct SparseTilePlace {
  int image, column;

  __device__ SparseTilePlace(const SparseTiles& p, int tile) {
    Digits digits{static_cast<unsigned>(tile)};
    column = digits.take(p.column_tiles) * p.width;
    image = static_cast<int>(digits.rest) * p.images;
  }
};

}  // namespace plimsoll::cuda
