#include "kernels/cuda/attention/attention_masks.cuh"
#include "kernels/division.h"

#include <climits>

// Serves attention and its gradients ("mma") with segments: one warp for each tile of rows, before the tiles are met.

namespace plimsoll::cuda {
namespace {

constexpr int block_warps = 4;

__global__ void __launch_bounds__(32 * block_warps) segment_tiles_kernel(AttentionShape n, int64_t tiles) {
  const int64_t number = int64_t{blockIdx.x} * block_warps + threadIdx.x / 32;
  const int64_t samples = n.segments_step > 0 ? n.batch : 1;
  if (number >= samples * tiles) return;
  const int64_t* const segments = n.segments + number / tiles * n.segments_step;
  SegmentTile tile{INT64_MAX, INT64_MIN};
  for (int i = static_cast<int>(threadIdx.x) % 32; i < segment_tile; i += 32) {
    const int64_t row = number % tiles * segment_tile + i;
    if (row >= n.columns) continue;
    tile.low = min(tile.low, segments[row]);
    tile.high = max(tile.high, segments[row]);
  }
  for (int distance = 1; distance < 32; distance *= 2) {
    tile.low = min(tile.low, static_cast<int64_t>(__shfl_xor_sync(whole_warp, tile.low, distance)));
    tile.high = max(tile.high, static_cast<int64_t>(__shfl_xor_sync(whole_warp, tile.high, distance)));
  }
  if (threadIdx.x % 32 == 0) n.segment_tiles[number] = tile;
}

}  // namespace

cudaError_t launch_segment_tiles(const AttentionShape& shape, cudaStream_t stream) {
  if (!shape.segments) return cudaSuccess;
  const int64_t tiles = (shape.columns + segment_tile - 1) / segment_tile;
  const int64_t warps = (shape.segments_step > 0 ? shape.batch : 1) * tiles;
  segment_tiles_kernel<<<static_cast<unsigned>(divide_up(warps, block_warps)), 32 * block_warps, 0, stream>>>(shape,
                                                                                                              tiles);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
