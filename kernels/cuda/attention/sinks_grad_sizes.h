#pragma once

// How the gradient of sinks is cut into blocks, without CUDA: planning asks for its workspace.

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// A head's rows of all samples are summed in so many parts, so that there are blocks for every multiprocessor.
constexpr int64_t sinks_grad_parts(int64_t heads, int64_t rows) {
  constexpr int64_t wanted_blocks = 1056, rows_per_block = 32;
  const int64_t useful = std::max<int64_t>((rows + rows_per_block - 1) / rows_per_block, 1);
  return std::clamp<int64_t>(wanted_blocks / std::max<int64_t>(heads, 1), 1, useful);
}

}  // namespace plimsoll::cuda
