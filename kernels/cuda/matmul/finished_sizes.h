#pragma once

// Which tiles finish a product whose results go through a function.

#include <cstdint>

namespace plimsoll::cuda {

// From these depths on tiles are finished in parts, 256 columns wide: those of functions that read something beside
// the product, and of others. Shorter sums wait to be finished, and parts are finished somewhat slower than whole
// tiles.
inline constexpr int64_t finished_parts_depth = 2048, finished_halves_depth = 640;

// Of shorter sums: the width whose tiles take least, each as long as its columns and 30 more.
inline int finished_tile_columns(int64_t columns) {
  constexpr int64_t of_each = 30;
  int best = 256;
  const auto cost = [&](int64_t width) { return (columns + width - 1) / width * (width + of_each); };
  for (int width : {192, 96})
    if (cost(width) < cost(best)) best = width;
  return best;
}

}  // namespace plimsoll::cuda
