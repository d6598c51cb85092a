#pragma once

// Convolutions over volumes of one channel to 16 whose taps lie in planes: the last dimension has one tap, as in lambda
// layers. The volume's last dimension is a run of numbers that lie one behind the other, which all meet the same taps.
// No CUDA here: plans are made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// x [images, x..., run, 1], w [16, kernel..., 1, 1] and y [images, y..., run, 16], with strides and dilations of 1.
struct PlaneTaps {
  static constexpr int channels = 16, tile = 16;  // tile: numbers of a run that a warp multiplies at once
  static constexpr int max_taps = 96, max_kernel = 9, threads = 256, warps = threads / 32;
  static constexpr int columns = 8;  // of dx, that a warp sums at once
  static constexpr int max_shared_bytes = 200'000, max_parts = 512;

  int images, x[2], y[2], pad[2], kernel[2], run;

  constexpr int taps() const { return kernel[0] * kernel[1]; }
  constexpr int64_t pixels() const { return int64_t{y[0]} * y[1]; }
  // Taps of a kernel that is compiled for them, the others of which are zeros: products of 16 taps, or rows of taps.
  constexpr int tap_tiles() const { return taps() <= 32 ? 2 : max_taps / 16; }
  constexpr int tap_rows() const { return kernel[0] <= 5 ? 5 : max_kernel; }

  // ---- Forward and dw: a block has a slice of the runs of an image in shared memory, between zeros ----

  constexpr int slice_rows() const { return y[0] + kernel[0] - 1; }
  // Taps that follow each other are in different banks, across the end of a row of taps, too.
  constexpr int slice_pitch() const {
    const int least = y[1] + kernel[1] - 1;
    return least + ((kernel[1] - least) % 8 + 8) % 8;
  }
  // Numbers of a pixel's run that a block has, and those from one pixel to the next.
  constexpr int slice() const {
    constexpr int wanted_bytes = 56'000;
    int numbers = 4 * tile;
    while (numbers > tile && (run % numbers != 0 || slice_bytes(numbers) > wanted_bytes)) numbers /= 2;
    return numbers;
  }
  static constexpr int pitch_of(int numbers) { return numbers + 8; }
  constexpr int slice_bytes(int numbers) const { return slice_rows() * slice_pitch() * pitch_of(numbers) * 2; }
  constexpr int slice_bytes() const { return slice_bytes(slice()); }
  constexpr int64_t slices() const { return int64_t{images} * (run / slice()); }

  // ---- dw: sums of the blocks, one behind the other ----

  // The sums of a block's warps, as their threads hold them.
  constexpr int sums_bytes() const { return warps * tap_tiles() * 16 * channels * static_cast<int>(sizeof(float)); }
  constexpr int64_t parts() const { return std::min<int64_t>(slices(), max_parts); }
  constexpr int64_t workspace_bytes() const { return parts() * channels * taps() * int64_t{sizeof(float)}; }

  // ---- dx: a warp has some columns of all rows, of one tile of an image's runs ----

  constexpr int column_tiles() const { return static_cast<int>(divide_up(x[1], columns)); }
  constexpr int64_t warp_items() const { return int64_t{images} * (run / tile) * column_tiles(); }
  // Fours of columns of dy that a warp reads of a row, on average.
  constexpr double fours_of_row() const {
    int64_t fours = 0;
    for (int first = 0; first < x[1]; first += columns)
      fours += divide_up(std::min(y[1], first + pad[1] + columns) - std::max(0, first + pad[1] - kernel[1] + 1), 4);
    return static_cast<double>(fours) / column_tiles();
  }
  // Columns of dy that a tile of columns may read.
  constexpr int read_columns() const { return kernel[1] + columns - 1; }
  constexpr int weight_bytes() const { return tap_rows() * read_columns() * 32 * 8 + taps() * channels * 2; }
};

constexpr bool takes_plane_taps(const PlaneTaps& p) {
  constexpr int64_t most = int64_t{1} << 30;
  const auto fits = [&](int d) {
    return p.kernel[d] <= PlaneTaps::max_kernel && p.pad[d] < p.kernel[d] && p.y[d] > 0 &&
           p.x[d] <= p.y[d] + p.kernel[d] - 1 - p.pad[d];
  };
  return p.run % PlaneTaps::tile == 0 && p.run > 0 && p.images > 0 && fits(0) && fits(1) &&
         p.taps() <= PlaneTaps::max_taps && p.slice_bytes() <= PlaneTaps::max_shared_bytes && p.slices() <= most &&
         p.warp_items() <= most && p.pixels() <= most;
}

}  // namespace plimsoll::cuda
