#include "kernels/cuda/conv/block_runs.h"

#include <doctest/doctest.h>

// Runs of neighbouring blocks as pixels: no device is needed.

using namespace plimsoll::cuda;

TEST_CASE("a pixel is the run of blocks under a line of the kernel, and lies where its first block does") {
  SpaceToDepth x, w;
  x.batch = 3;
  x.blocks[0] = 7, x.blocks[1] = 9;
  x.block_channels = w.block_channels = 16;
  w.blocks[0] = 3, w.blocks[1] = 4;
  constexpr int64_t down = 5, across = 6, channels = 24;
  const BlockRuns runs(x, w, down, across, channels);
  CHECK(runs.sizes.kernel[0] == 1);
  CHECK(runs.sizes.kernel[1] == 3);
  CHECK(runs.sizes.x_channels == 64);
  CHECK(runs.sizes.y_channels == channels);
  for (int64_t image = 0; image < x.batch; ++image)
    for (int64_t row = 0; row < down; ++row)
      for (int64_t column = 0; column < across; ++column) {
        CHECK(image * runs.y.image + column * runs.y.line + row * runs.y.pixel ==
              ((image * down + row) * across + column) * channels);
        for (int64_t tap = 0; tap < w.blocks[0]; ++tap)
          CHECK(image * runs.x.image + column * runs.x.line + (row + tap) * runs.x.pixel ==
                ((image * x.blocks[0] + row + tap) * x.blocks[1] + column) * x.block_channels);
      }
  // Lines of images are as many as taps can reach, and the last run ends with its line.
  CHECK(runs.sizes.x[1] == x.blocks[0]);
  CHECK(runs.sizes.y[1] == x.blocks[0] - w.blocks[0] + 1);
  CHECK((across - 1) * runs.x.line + runs.sizes.x_channels == runs.x.pixel);
}
