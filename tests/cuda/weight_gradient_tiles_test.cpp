#include "kernels/cuda/matmul/weight_gradient_sizes.h"

#include <doctest/doctest.h>

// How our own weight gradient divides its work: no device is needed.

using namespace plimsoll::cuda;

namespace {

constexpr int64_t multiprocessors = 132, most = (32 << 20) / 4;

WeightGradientTiles tiles_of(int64_t depth, int64_t rows, int64_t columns, bool left_is_dy = false,
                             int64_t floats = most) {
  return choose_weight_gradient_tiles({rows, columns, depth, left_is_dy}, multiprocessors, floats);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("weight gradient: parts of the depth fill the multiprocessors") {
    // 4 x 16 tiles of 192 x 192, in two parts.
    const WeightGradientTiles wide = tiles_of(16384, 768, 3072);
    CHECK(wide.tile_rows == 192);
    CHECK(wide.tiles() == 64);
    CHECK(wide.parts == 2);
    CHECK(wide.block_steps() == 128);
    CHECK(wide.partial_elements() == 128 * 192 * 192);
    // Each of the four rows of tiles has a share of the bias's sums in either part.
    CHECK(wide.bias_partials() == 8);
    CHECK(wide.workspace() == 128 * 192 * 192 + 8 * 3072);
    // 6 x 9 tiles of 128 x 256 make 108 blocks, 4 x 12 tiles of 192 x 192 only 96.
    CHECK(tiles_of(16384, 768, 2304).tile_columns == 256);
    CHECK(tiles_of(16384, 768, 2304).parts == 2);
    // Tiles that fill the chip have all of the depth.
    CHECK(tiles_of(8192, 1024, 4096).parts == 1);
    CHECK(tiles_of(8192, 1024, 4096).partial_elements() == 0);
    // Few columns have tiles that are not much wider: less is stored and added.
    CHECK(tiles_of(401408, 96, 96).tile_columns == 96);
    CHECK(tiles_of(401408, 96, 96).parts == 132);
    CHECK(tiles_of(401408, 96, 288).tile_elements() == 128 * 192);
    // A short depth has no more parts than steps.
    CHECK(tiles_of(130, 96, 96).parts <= 3);
    CHECK(tiles_of(1, 8, 8).parts == 1);
  }

  TEST_CASE("weight gradient: the bias is summed along the side of dy") {
    const WeightGradientTiles left = tiles_of(16384, 3072, 768, true);
    CHECK(left.sizes.bias_elements() == 3072);
    CHECK(left.bias_shares() == left.across());
    CHECK(tiles_of(16384, 3072, 768).bias_shares() == left.down());
  }

  TEST_CASE("weight gradient: the workspace it asked for leads to the same tiles, and less to fewer parts") {
    for (int64_t depth : {64, 2048, 19712, 98304})
      for (int64_t rows : {8, 200, 384, 768, 3072})
        for (int64_t columns : {96, 512, 2304, 8192}) {
          const WeightGradientTiles chosen = tiles_of(depth, rows, columns);
          CHECK(chosen.workspace() <= most);
          const WeightGradientTiles again = tiles_of(depth, rows, columns, false, chosen.workspace());
          CHECK(again.tile_rows == chosen.tile_rows);
          CHECK(again.parts == chosen.parts);
        }
    CHECK(tiles_of(16384, 768, 768, false, 1 << 20 >> 2).parts == 1);
  }
}
