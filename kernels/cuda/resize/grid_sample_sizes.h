#pragma once

// How the gradient of sampled images divides its work and its workspace. No CUDA here: plans are made where there is
// none.

#include "kernels/division.h"

#include <cstdint>

namespace plimsoll::cuda {

// A sample lies in a cell, between four pixels; cells stand around the image, too.
constexpr int64_t grid_cells(int64_t height, int64_t width) { return (height + 1) * (width + 1); }

// A block holds counters of the cells of a band, one for each of its warps, and looks through all samples of an image.
// Where all blocks run at once they have more warps: 29 us for 47 of 64 images with 289 cells and 21,504 samples each
// on an H200, but 719 for 410 where 258 bands become 515.
struct SampleBands {
  int threads = 512;
  int64_t bands;

  static constexpr int64_t counters = 8192, most_blocks_at_once = 528;
  static constexpr int64_t band_cells(int threads) { return 32 * counters / threads; }

  constexpr SampleBands(int64_t images, int64_t cells) : bands(divide_up(cells, band_cells(threads))) {
    if (images * bands <= most_blocks_at_once) return;
    threads = 256;
    bands = divide_up(cells, band_cells(threads));
  }
};

// Lanes of a warp that work on a pixel: a team shares its channels, and `splits` teams share its samples.
struct PixelTeams {
  int team = 1, splits = 1;

  // Teams wait for each other, so that there is one for 16 samples, four in every cell, that a pixel has on average. A
  // pixel that far more samples read holds its warp up.
  constexpr PixelTeams(int64_t runs_of_channels, int64_t pixels, int64_t samples) {
    constexpr int lanes = 32, samples_of_team = 16;
    while (team < runs_of_channels && team < lanes) team *= 2;
    while (team * splits < lanes && 2 * splits * samples_of_team * pixels <= 4 * samples) splits *= 2;
  }
};

// Samples by their cells: where each cell's begin, the cell of each sample, and, ordered by cells, the samples and what
// they weigh along rows and columns.
struct GridSampleWorkspace {
  int64_t starts, cells, order, shares, bytes;  // where each begins

  constexpr GridSampleWorkspace(int64_t images, int64_t height, int64_t width, int64_t samples)
      : starts(0),
        cells(round_up(4 * images * (grid_cells(height, width) + 1), 256)),
        order(cells + round_up(4 * images * samples, 256)),
        shares(order + round_up(4 * images * samples, 256)),
        bytes(shares + round_up(8 * images * samples, 256)) {}
};

}  // namespace plimsoll::cuda
