#include "kernels/cuda/matmul/column_product_sizes.h"

#include <doctest/doctest.h>

// How our own products whose columns are summed divide their work: no device is needed.

using namespace plimsoll::cuda;

namespace {

constexpr int64_t multiprocessors = 132;

ColumnTiling tiling_of(int64_t rows, int64_t depth, int64_t columns, int64_t floats = INT64_MAX) {
  return choose_moments_tiling({rows, columns, depth}, multiprocessors, floats);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("column product: tiles are as wide as the columns need") {
    CHECK(tiling_of(802816, 256, 64).tile_columns == 64);
    CHECK(tiling_of(802816, 256, 24).tile_columns == 64);
    CHECK(tiling_of(802816, 256, 72).tile_columns == 128);
    CHECK(tiling_of(802816, 64, 256).tile_columns == 256);
    // Where the depth is long, more stages of narrower tiles are quicker.
    CHECK(tiling_of(12544, 512, 2048).tile_columns == 128);
  }

  TEST_CASE("column product: blocks share columns, and each has one multiprocessor") {
    CHECK(tiling_of(802816, 64, 256).row_blocks == 132);
    CHECK(tiling_of(200704, 128, 512).row_blocks == 66);
    CHECK(tiling_of(50176, 256, 1024).row_blocks == 33);
    CHECK(tiling_of(12544, 512, 2048).row_blocks == 8);
    CHECK(tiling_of(12544, 512, 2048).blocks() == 128);
    // No more than there are tiles of rows, and than the workspace has room for.
    CHECK(tiling_of(300, 64, 64).row_blocks == 3);
    CHECK(tiling_of(1, 8, 8).row_blocks == 1);
    CHECK(tiling_of(802816, 64, 256, 3 * 256 * 10).row_blocks == 10);
    CHECK(tiling_of(802816, 64, 256).workspace() == 3 * 132 * 256);
    // More columns than multiprocessors have tiles for still have blocks of their own.
    CHECK(tiling_of(256, 64, 256 * 200).blocks() == 200);
  }

  TEST_CASE("column product: weights stay in shared memory where they fit beside enough stages") {
    struct Case {
      int64_t depth, columns, stages;
      bool keeps;
    };
    for (const Case& c : {Case{64, 256, 4, true},
                          {128, 512, 4, true},
                          {256, 1024, 3, false},
                          {256, 64, 4, true},
                          {512, 128, 4, true},
                          {1024, 256, 6, false},
                          {2048, 64, 8, false},
                          {2048, 512, 6, false}}) {
      CAPTURE(c.depth);
      CAPTURE(c.columns);
      const ColumnTiling tiling = tiling_of(50176, c.depth, c.columns);
      CHECK(tiling.keeps_right == c.keeps);
      CHECK(tiling.stages() == c.stages);
      CHECK(tiling.used_bytes() <= ColumnTiling::shared_bytes);
    }
  }

  TEST_CASE("column product: tensors beside the sums leave room for four stages where weights can be kept") {
    struct Case {
      int64_t depth, columns, beside, tile_columns, stages;
      bool keeps;
    };
    for (const Case& c : {Case{64, 256, 3, 128, 4, true},
                          {128, 512, 3, 128, 4, true},
                          {256, 512, 3, 64, 4, true},
                          {512, 1024, 3, 128, 3, false},
                          {256, 64, 1, 64, 4, true},
                          {512, 128, 1, 64, 7, true},
                          {1024, 256, 1, 128, 5, false}}) {
      CAPTURE(c.depth);
      CAPTURE(c.columns);
      const ColumnTiling tiling =
          choose_gradient_tiling({50176, c.columns, c.depth}, c.beside, multiprocessors, INT64_MAX);
      CHECK(tiling.tile_columns == c.tile_columns);
      CHECK(tiling.keeps_right == c.keeps);
      CHECK(tiling.stages() == c.stages);
      CHECK(tiling.used_bytes() <= ColumnTiling::shared_bytes);
      CHECK(tiling.workspace() == 2 * tiling.row_blocks * c.columns);
    }
  }
}
