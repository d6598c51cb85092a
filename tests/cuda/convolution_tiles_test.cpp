#include "kernels/cuda/conv/depthwise_sizes.h"

#include <doctest/doctest.h>

#include <set>
#include <tuple>

// How our own convolutions divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

using Triple = std::tuple<int, int, int>;  // pixel of x, tap, pixel of y

std::set<Triple> meetings(const ConvolutionSizes& c, int d) {
  std::set<Triple> all;
  for (int y = 0; y < c.y[d]; ++y)
    for (int tap = 0; tap < c.kernel[d]; ++tap)
      if (const int x = y * c.stride[d] + tap * c.dilation[d] - c.pad[d]; x >= 0 && x < c.x[d]) all.insert({x, tap, y});
  return all;
}

// What a pass by these classes visits; each only once.
std::set<Triple> visits(const TapAxes& axes, int d, bool gradient) {
  std::set<Triple> all;
  for (int i = 0; i < axes.classes[d]; ++i) {
    const TapAxis& axis = axes.at[d][i];
    for (int q = 0; q < axis.out_pixels; ++q)
      for (int j = 0; j < axis.taps; ++j) {
        const int in = q * axis.in_stride + axis.first + j * axis.step, out = q * axis.out_step + axis.out_first;
        if (in < 0 || in >= axis.in_pixels) continue;
        const int tap = axis.tap_first + j * axis.tap_step;
        CHECK(all.insert(gradient ? Triple{out, tap, in} : Triple{in, tap, out}).second);
      }
  }
  return all;
}

ConvolutionSizes line(int pixels, int kernel, int stride, int pad, int dilation, int pad_behind) {
  ConvolutionSizes c;
  c.x[1] = pixels;
  c.kernel[1] = kernel;
  c.stride[1] = stride;
  c.pad[1] = pad;
  c.dilation[1] = dilation;
  c.y[1] = (pixels + pad + pad_behind - (kernel - 1) * dilation - 1) / stride + 1;
  return c;
}

ConvolutionSizes image(int64_t batch, int size, int kernel, int stride, int groups, int channels) {
  ConvolutionSizes c;
  c.batch = batch;
  c.groups = groups;
  c.x_channels = c.y_channels = channels;
  for (int d = 0; d < 2; ++d) {
    c.x[d] = size;
    c.kernel[d] = kernel;
    c.stride[d] = stride;
    c.pad[d] = kernel / 2;
    c.y[d] = (size + 2 * c.pad[d] - kernel) / stride + 1;
  }
  return c;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the classes of a convolution's pixels visit every pixel and tap that meet, once") {
    for (int pixels : {1, 5, 12})
      for (int kernel : {1, 2, 3, 5})
        for (int stride : {1, 2, 3, 4})
          for (int dilation : {1, 2, 3})
            for (int pad : {0, 1, 4}) {
              if (pixels + pad + 2 <= (kernel - 1) * dilation) continue;
              const ConvolutionSizes c = line(pixels, kernel, stride, pad, dilation, 2);
              INFO(pixels, " pixels, ", kernel, " taps, stride ", stride, ", dilation ", dilation, ", pad ", pad);
              CHECK(visits(forward_axes(c), 1, false) == meetings(c, 1));
              CHECK(visits(gradient_axes(c), 1, true) == meetings(c, 1));
            }
  }

  TEST_CASE("the classes of an input gradient cover each of its pixels once") {
    for (int pixels : {1, 2, 7})
      for (int stride : {1, 2, 4}) {
        const TapAxes axes = gradient_axes(line(pixels, 1, stride, 0, 1, 0));
        std::set<int> covered;
        for (int i = 0; i < axes.classes[1]; ++i)
          for (int q = 0; q < axes.at[1][i].out_pixels; ++q)
            CHECK(covered.insert(q * axes.at[1][i].out_step + axes.at[1][i].out_first).second);
        CHECK(covered.size() == static_cast<size_t>(pixels));
        CHECK(*covered.rbegin() == pixels - 1);
      }
  }

  TEST_CASE("tiles of pixels cover an image, and waste little of it") {
    for (int size : {7, 14, 28, 56, 112}) {
      const PixelTiles t(forward_axes(image(1, size, 3, 1, 1, 8)), 128);
      CHECK(t.tile[0] * t.tile[1] <= 128);
      CHECK(t.tile[0] * t.tiles[0] >= size);
      CHECK(t.tile[1] * t.tiles[1] >= size);
      CHECK(t.count() * 128 < 1.35 * size * size + 128);
    }
  }

  TEST_CASE("convolutions in groups fit the shared memory of a block, and their parts the workspace") {
    for (int channels : {8, 16, 24, 32, 40, 48, 56, 64})
      for (int stride : {1, 2}) {
        const ConvolutionSizes c = image(32, 28, 3, stride, 12, channels);
        INFO(channels, " channels, stride ", stride);
        CHECK(fits_grouped_tiles(c));
        CHECK(fits(GroupedTiles(c, false)));
        CHECK(fits(GroupedTiles(c, true)));
        const GroupedWeightTiles w(c);
        CHECK(fits(w));
        CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
        CHECK(w.splits <= w.items);
      }
    ConvolutionSizes odd = image(32, 28, 3, 1, 12, 12);
    CHECK(!fits_grouped_tiles(odd));  // 12 channels are not whole vectors
    odd = image(32, 28, 3, 5, 12, 16);
    CHECK(!fits_grouped_tiles(odd));  // 25 classes of pixels
  }

  TEST_CASE("depthwise tiles hold 16 columns, or 8 of two images, of up to 32 channels") {
    const DepthwiseTiles wide(image(128, 56, 7, 1, 96, 1), false);
    CHECK(wide.block_units == 4);
    CHECK(wide.rows == 14);
    CHECK(wide.tile_width == 22);
    CHECK(!wide.narrow);
    CHECK(wide.items == 128 * 4 * 4);
    CHECK(wide.splits * 6 >= wide.items);  // equal shares, but for the last
    const DepthwiseTiles narrow(image(5, 7, 7, 1, 768, 1), true);
    CHECK(narrow.narrow);
    CHECK(narrow.tile_width == 28);
    CHECK(narrow.items == 3);  // the last image stands alone
    CHECK(fits_depthwise_tiles(image(1, 9, 5, 1, 16, 1)));
    CHECK(!fits_depthwise_tiles(image(1, 9, 5, 2, 16, 1)));
    CHECK(!fits_depthwise_tiles(image(1, 9, 5, 1, 12, 1)));
    CHECK(fits_depthwise(image(1, 9, 5, 2, 13, 1)));
  }
}
