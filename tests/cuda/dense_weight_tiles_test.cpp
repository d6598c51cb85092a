#include "kernels/cuda/conv/dense_weight_tiles.h"

#include <doctest/doctest.h>

#include <map>
#include <tuple>

// How our own weight gradients without groups divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

constexpr int64_t multiprocessors = 132, most = (256 << 20) / 4;

struct Side {
  int pixels, kernel, stride, pad, dilation;
};

ConvolutionSizes sizes_of(int64_t batch, const Side& down, const Side& across, int from, int to) {
  ConvolutionSizes c;
  c.batch = batch;
  c.x_channels = from;
  c.y_channels = to;
  for (int d = 0; d < 2; ++d) {
    const Side& side = d == 0 ? down : across;
    c.x[d] = side.pixels, c.kernel[d] = side.kernel, c.stride[d] = side.stride, c.pad[d] = side.pad;
    c.dilation[d] = side.dilation;
    c.y[d] = (side.pixels + 2 * side.pad - (side.kernel - 1) * side.dilation - 1) / side.stride + 1;
  }
  return c;
}

int64_t pixel_of(int64_t image, int row, int column, const int (&size)[2]) {
  if (row < 0 || row >= size[0] || column < 0 || column >= size[1]) return -1;
  return (image * size[0] + row) * size[1] + column;
}

// A tap (down, across), a pixel of y and the pixel of x under it, and how often they meet.
using Meetings = std::map<std::tuple<int, int, int64_t, int64_t>, int>;

Meetings wanted(const ConvolutionSizes& c) {
  Meetings all;
  for (int64_t image = 0; image < c.batch; ++image)
    for (int row = 0; row < c.y[0]; ++row)
      for (int column = 0; column < c.y[1]; ++column)
        for (int down = 0; down < c.kernel[0]; ++down)
          for (int across = 0; across < c.kernel[1]; ++across)
            if (const int64_t x = pixel_of(image, row * c.stride[0] + down * c.dilation[0] - c.pad[0],
                                           column * c.stride[1] + across * c.dilation[1] - c.pad[1], c.x);
                x >= 0)
              all[{down, across, pixel_of(image, row, column, c.y), x}] = 1;
  return all;
}

// What the first 64 channels of x meet in all steps, as copies and products read boxes.
Meetings met(const DenseWeightTiles& t) {
  const ConvolutionSizes& c = t.c;
  Meetings all;
  for (int tile = 0; tile < t.across(); ++tile) {
    const PixelRange rows = t.pixels_of(0, tile), columns = t.pixels_of(1, tile);
    int steps = 0;
    for (int64_t image = 0; image < c.batch; image += t.box_images)
      for (int row = rows.begin; row < rows.end; row += t.box[0])
        for (int column = columns.begin; column < columns.end; column += t.box[1], ++steps)
          for (int s = tile * t.shape.block_sets(); s < std::min((tile + 1) * t.shape.block_sets(), t.all_sets()); ++s)
            for (int tap = 0; tap < t.shape.taps; ++tap)
              for (int at = 0; at < DenseWeightTiles::step_pixels; ++at) {
                const DenseSet set = t.set(s);
                if (set.channel != 0 || set.across + tap >= c.kernel[1]) continue;
                const int line = at / t.box[1], of_line = at % t.box[1];
                // Rows of shared memory: lines of x are longer than those of y.
                const int found = line * (t.box[1] + t.halo()) + of_line + tap * t.shift();
                const int x_line = found / (t.box[1] + t.halo()), x_of_line = found % (t.box[1] + t.halo());
                if (x_line != line) return {};
                const int64_t of_image = image + line / t.box[0];
                const int64_t y = pixel_of(of_image, row + line % t.box[0], column + of_line, c.y);
                const int64_t x = pixel_of(
                    of_image, (row + x_line % t.box[0]) * c.stride[0] + set.down * c.dilation[0] - c.pad[0],
                    column * c.stride[1] + set.across * c.dilation[1] - c.pad[1] + x_of_line * c.stride[1], c.x);
                if (of_image < c.batch && x >= 0 && y >= 0) ++all[{set.down, set.across + tap, y, x}];
              }
    CHECK(steps == t.steps_of(tile));
  }
  return all;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("dense weight gradient: every tap meets each pixel under it once, in boxes of any form") {
    const Side near{13, 3, 1, 1, 1}, wide{21, 3, 1, 4, 4}, far{9, 3, 1, 12, 12}, strided{14, 3, 2, 1, 1},
        both{15, 3, 2, 2, 2}, five{10, 5, 1, 2, 1}, dot{11, 1, 1, 0, 1}, strided_dot{11, 1, 2, 0, 1};
    int forms = 0;
    for (const auto& [down, across] : {std::pair<Side, Side>{near, near},
                                       {near, wide},
                                       {wide, far},
                                       {strided, strided},
                                       {both, both},
                                       {five, strided},
                                       {dot, dot},
                                       {dot, five},
                                       {strided_dot, strided_dot}}) {
      const ConvolutionSizes c = sizes_of(3, down, across, 72, 8);
      const Meetings all = wanted(c);
      for (const DenseTileShape& shape : dense_tile_shapes)
        for (int box_across = 64; box_across >= (shape.taps > 1 ? 8 : 1); box_across /= 4)
          for (int box_down = 64 / box_across; box_down >= 1; box_down /= 2) {
            const DenseWeightTiles t{c, shape, {box_down, box_across}, 64 / box_across / box_down};
            if (!fits(t)) continue;
            ++forms;
            INFO(shape.taps, " taps, boxes of ", t.box_images, " x ", box_down, " x ", box_across);
            CHECK(met(t) == all);
          }
    }
    CHECK(forms > 100);
  }

  TEST_CASE("dense weight gradient: taps share pixels, and those outside the image are passed over") {
    const Side near{64, 3, 1, 2, 2}, far{64, 3, 1, 36, 36};
    const DenseWeightTiles t = choose_dense_weight_tiles(sizes_of(48, near, near, 256, 256), multiprocessors, most);
    CHECK(t.shape == DenseTileShape{2, 1, 1, 3});
    CHECK(t.tiles() == 24);  // 2 of rows, and 3 taps down of 4 sets of channels
    CHECK(t.blocks() % 132 == 0);
    CHECK(t.box[1] == 64);
    CHECK(t.copied_bytes() == (128 + 68) * 128);
    CHECK(t.steps_of(0) == 48 * 62);
    CHECK(t.steps_of(4) == 48 * 64);
    // 28 of 64 lines have pixels 36 lines away.
    const DenseWeightTiles shared = with_best_box(sizes_of(48, far, far, 2048, 256), {2, 1, 1, 3});
    CHECK(shared.steps_of(0) == 48 * 28);
    CHECK(with_best_box(sizes_of(48, far, far, 2048, 256), {2, 1, 4, 1}).steps_of(0) == 48 * 28 * 28 / 64);
  }

  TEST_CASE("dense weight gradient: small images share a box") {
    const Side near{7, 3, 1, 1, 1};
    CHECK(with_best_box(sizes_of(256, near, near, 512, 512), {2, 1, 1, 3}).steps_of(8) == 7 * 256 / 8);
  }

  TEST_CASE("dense weight gradient: the workspace it asked for leads to the same tiles, and less to fewer parts") {
    for (int pixels : {7, 14, 56})
      for (int kernel : {2, 3})
        for (int from : {8, 64, 320})
          for (int to : {32, 512}) {
            const Side side{pixels, kernel, 1, kernel / 2, 1};
            const ConvolutionSizes c = sizes_of(128, side, side, from, to);
            CHECK(takes_dense_weights(c));
            const DenseWeightTiles chosen = choose_dense_weight_tiles(c, multiprocessors, most);
            CHECK(chosen.workspace() <= most);
            CHECK(fits(chosen));
            CHECK(chosen.shared_bytes() <= DenseWeightTiles::max_shared_bytes);
            const DenseWeightTiles again = choose_dense_weight_tiles(c, multiprocessors, chosen.workspace());
            CHECK(again.shape == chosen.shape);
            CHECK(again.parts == chosen.parts);
            CHECK(choose_dense_weight_tiles(c, multiprocessors, 0).parts == 1);
          }
  }

  TEST_CASE("dense weight gradient: sizes that the copy engine does not take are refused") {
    const Side near{7, 3, 1, 1, 1}, dot{7, 1, 1, 0, 1}, far{40, 2, 9, 0, 1};
    CHECK(takes_dense_weights(sizes_of(2, near, near, 8, 8)));
    CHECK(!takes_dense_weights(sizes_of(2, near, near, 12, 8)));
    CHECK(!takes_dense_weights(sizes_of(2, dot, dot, 8, 8)));  // a product of matrices
    CHECK(!takes_dense_weights(sizes_of(2, far, near, 8, 8)));
    CHECK(takes_dense_weights(sizes_of(2, {40, 2, 8, 0, 1}, near, 8, 8)));
    CHECK(!takes_dense_weights(sizes_of(1 << 25, near, near, 8, 8)));
  }
}
