#pragma once

// How the gradient of a mask is cut into blocks, without CUDA: planning asks for its workspace.

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

struct MaskGradTile {
  int64_t rows, columns;
};
constexpr MaskGradTile mask_grad_tile(int64_t depth) {
  if (depth <= 64) return {64, 32};
  return depth <= 128 ? MaskGradTile{32, 32} : MaskGradTile{16, 16};
}

// A mask that samples share is summed in so many parts of the batch, so that there are blocks for every multiprocessor.
constexpr int64_t mask_grad_parts(int64_t mask_batch, int64_t mask_heads, int64_t rows, int64_t columns, int64_t depth,
                                  int64_t batch) {
  constexpr int64_t wanted_blocks = 1024;
  const MaskGradTile tile = mask_grad_tile(depth);
  const int64_t tiles = (rows + tile.rows - 1) / tile.rows * ((columns + tile.columns - 1) / tile.columns);
  if (mask_batch != 1) return 1;
  return std::clamp<int64_t>(wanted_blocks / std::max<int64_t>(mask_heads * tiles, 1), 1, std::max<int64_t>(batch, 1));
}

}  // namespace plimsoll::cuda
