#include "kernels/cuda/conv/dense_tiles.h"

#include <doctest/doctest.h>

#include <set>
#include <tuple>

// How our own convolutions without groups divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

ConvolutionSizes sizes_of(int64_t batch, int pixels, int kernel, int stride, int pad, int dilation, int from, int to) {
  ConvolutionSizes c;
  c.batch = batch;
  c.x_channels = from;
  c.y_channels = to;
  for (int d = 0; d < 2; ++d) {
    c.x[d] = pixels, c.kernel[d] = kernel, c.stride[d] = stride, c.pad[d] = pad, c.dilation[d] = dilation;
    c.y[d] = (pixels + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
  }
  return c;
}

using Meeting = std::tuple<int, int, int>;  // pixel of the result, tap, pixel of the other image

// Along one dimension, by the sizes alone.
std::set<Meeting> wanted(const ConvolutionSizes& c, bool gradient) {
  std::set<Meeting> all;
  for (int y = 0; y < c.y[1]; ++y)
    for (int tap = 0; tap < c.kernel[1]; ++tap)
      if (const int x = y * c.stride[1] + tap * c.dilation[1] - c.pad[1]; x >= 0 && x < c.x[1])
        all.insert(gradient ? Meeting{x, tap, y} : Meeting{y, tap, x});
  return all;
}

// What boxes of so many pixels read under the taps that they do not pass over.
std::set<Meeting> met(const DenseAxis& axis, int pixels) {
  std::set<Meeting> all;
  int64_t taps = 0;
  for (int begin = 0; begin < axis.out; begin += pixels)
    for (int tap = axis.first_tap(begin, pixels); tap < axis.end_tap(begin, pixels); ++tap, ++taps)
      for (int i = 0; i < pixels && begin + i < axis.out; ++i)
        if (const int in = axis.first_of(begin, tap) + i * axis.stride; in >= 0 && in < axis.in)
          all.insert({begin + i, tap, in});
  CHECK(taps == axis.all_taps(pixels));
  return all;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("dense convolution: boxes read every pixel under every tap that meets them") {
    for (int pixels : {1, 7, 30})
      for (int kernel : {2, 3, 5})
        for (int stride : {1, 2, 3})
          for (int dilation : {1, 2, 12})
            for (int pad : {0, 1, 12}) {
              if (pixels + 2 * pad <= (kernel - 1) * dilation) continue;
              const ConvolutionSizes c = sizes_of(1, pixels, kernel, stride, pad, dilation, 8, 8);
              for (bool gradient : {false, true}) {
                if (!takes_dense(c, gradient)) continue;
                for (int box : {1, 4, 16, 64}) CHECK(met(dense_axis(c, gradient, 1), box) == wanted(c, gradient));
              }
            }
  }

  TEST_CASE("dense convolution: tiles cover the image, and taps beyond it are passed over") {
    const DenseTiles near = choose_dense_tiles(sizes_of(48, 64, 3, 1, 1, 1, 256, 256), false, 132);
    CHECK(near.columns == 256);
    CHECK(near.tiles() == 48 * 64 * 64 / 128);
    CHECK(near.stages() == 3);
    CHECK(near.shared_bytes() <= DenseTiles::max_shared_bytes);
    for (bool gradient : {false, true}) {
      const DenseTiles far = choose_dense_tiles(sizes_of(48, 64, 3, 1, 36, 36, 2048, 256), gradient, 132);
      CHECK(far.tiles() == (gradient ? 8 : 1) * 48 * 64 * 64 / 128);
      // Of 64 lines 28 have pixels 36 lines before them, and 28 behind.
      CHECK(far.all_steps() * 128 <= far.tiles() * 128 * far.channel_steps() * 9 * 45 / 100);
    }
    for (int pixels : {7, 14, 33})
      for (int64_t batch : {1, 3, 256}) {
        const DenseTiles t = choose_dense_tiles(sizes_of(batch, pixels, 3, 1, 1, 1, 64, 72), false, 132);
        CHECK(t.box_images * t.box[0] * t.box[1] == 64);
        CHECK(t.tile_images() * t.tile_down() * t.tile_across() == 128);
        CHECK(t.images() * t.tile_images() >= batch);
        CHECK(t.down() * t.tile_down() >= pixels);
        CHECK(t.across() * t.tile_across() >= pixels);
      }
  }

  TEST_CASE("dense convolution: groups, odd channels, single taps and strides of gradients are refused") {
    CHECK(takes_dense(sizes_of(2, 9, 3, 2, 1, 1, 8, 8), false));
    CHECK(!takes_dense(sizes_of(2, 9, 3, 2, 1, 1, 8, 8), true));
    CHECK(!takes_dense(sizes_of(2, 9, 3, 1, 1, 1, 12, 8), false));
    CHECK(!takes_dense(sizes_of(2, 9, 1, 1, 0, 1, 8, 8), false));  // a product of matrices
    CHECK(!takes_dense(sizes_of(2, 90, 3, 9, 1, 1, 8, 8), false));
    ConvolutionSizes groups = sizes_of(2, 9, 3, 1, 1, 1, 8, 8);
    groups.groups = 2;
    CHECK(!takes_dense(groups, false));
  }
}
