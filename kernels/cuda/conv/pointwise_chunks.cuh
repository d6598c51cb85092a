#pragma once

// What convolutions of one tap on chunks of pixels share on the device.

#include "kernels/cuda/common/ring_barriers.cuh"
#include "kernels/cuda/common/volume_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/pointwise_chunks.h"
#include "kernels/cuda/conv/shared_pairs.cuh"

namespace plimsoll::cuda {

// The chunks of a block, and the pixels of one of them.
struct BlockChunks {
  int64_t begin, end;

  __device__ explicit BlockChunks(const PixelChunks& p)
      : begin(p.chunks * blockIdx.x / p.splits), end(p.chunks * (blockIdx.x + 1) / p.splits) {}
};
__device__ inline int pixels_of_chunk(const PixelChunks& p, int64_t chunk) {
  const int64_t left = p.pixels - chunk * p.chunk_pixels;
  return left < p.chunk_pixels ? static_cast<int>(left) : p.chunk_pixels;
}

}  // namespace plimsoll::cuda
