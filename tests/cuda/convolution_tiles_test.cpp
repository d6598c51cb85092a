#include "tests/cuda/convolution_tiles.h"
#include "kernels/cuda/conv/grouped_runs.h"
#include "kernels/cuda/conv/grouped_weight_runs.h"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <tuple>

// How our own convolutions of channels in groups, and without groups, divide their work, by brute force: no device is
// needed.

using namespace plimsoll;
using namespace plimsoll::cuda;
using namespace plimsoll::testing;

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

// The pixel, counted over all images, that a position of these planes holds, or -1: a zero.
int64_t pixel_in_planes(const ImageRuns& runs, const RunPlanes& planes, int64_t position) {
  if (position >= runs.batch * runs.image_positions) return -1;
  const RunAxis &down = runs.axes[0], &across = runs.axes[1];
  const int64_t image = position / runs.image_positions, line = position % runs.image_positions;
  const int64_t row = line / across.period - down.lead, column = line % across.period - across.lead;
  if (row < 0 || row >= planes.pixels[0] || column < 0 || column >= planes.pixels[1]) return -1;
  const int64_t y = row * down.in_classes + planes.in_class[0], x = column * across.in_classes + planes.in_class[1];
  return (image * down.in + y) * across.in + x;
}

// The same where a unit of channels lies `at` units behind the begin of the planes of a tile.
int64_t pixel_of_unit(const ImageRuns& runs, int units, int unit, int64_t tile_begin, int at) {
  for (int i = 0; i < runs.classes; ++i) {
    const RunPlanes& planes = runs.planes[i];
    const int in_planes = at - planes.at - unit * planes.plane_units;
    if (at < planes.at || at >= planes.at + units * planes.plane_units) continue;
    CHECK(in_planes >= 0);
    CHECK(in_planes < planes.positions);
    return pixel_in_planes(runs, planes, tile_begin + planes.first + in_planes);
  }
  return -2;
}

// The pixel that a tap of an out pixel reads along one dimension, or -1.
int read_pixel(const ConvolutionSizes& c, bool gradient, int d, int out, int tap) {
  const int reach = tap * c.dilation[d] - c.pad[d];
  if (!gradient) return pixel_or_none(out * c.stride[d] + reach, c.x[d]);
  return (out - reach) % c.stride[d] != 0 ? -1 : pixel_or_none((out - reach) / c.stride[d], c.y[d]);
}
int64_t read_pixel(const ConvolutionSizes& c, bool gradient, int64_t image, int y, int x, int tap) {
  const int row = read_pixel(c, gradient, 0, y, tap / c.kernel[1]);
  const int column = read_pixel(c, gradient, 1, x, tap % c.kernel[1]);
  const int* in = gradient ? c.y : c.x;
  return row < 0 || column < 0 ? -1 : (image * in[0] + row) * in[1] + column;
}

// What a product of a position sums: pixels, taps and units of channels.
std::set<Triple> terms_of(const GroupedRuns& p, const GroupedRuns::OutClass& of, int64_t position) {
  std::set<Triple> all;
  for (int i = 2 * of.first_pair; i < 2 * of.end_pair; ++i) {
    if (p.term_of[i] == GroupedRuns::no_term) continue;
    const uint32_t pair = p.pair_at[i / 2];
    const int at = static_cast<int>((pair & 0xffff) + (i % 2 != 0 ? pair >> 16 : 0) + position % p.tile);
    const int unit = p.term_of[i] % GroupedRuns::name_units, tap = p.term_of[i] / GroupedRuns::name_units;
    const int64_t pixel = pixel_of_unit(p.runs, p.in_units, unit, position / p.tile * p.tile, at);
    if (pixel != -1) CHECK(all.insert({static_cast<int>(pixel), tap, unit}).second);
  }
  return all;
}
std::set<Triple> wanted_terms(const ConvolutionSizes& c, bool gradient, int64_t image, int y, int x, int units) {
  std::set<Triple> all;
  for (int tap = 0; tap < c.taps(); ++tap)
    if (const int64_t pixel = read_pixel(c, gradient, image, y, x, tap); pixel >= 0)
      for (int unit = 0; unit < units; ++unit) all.insert({static_cast<int>(pixel), tap, unit});
  return all;
}

// Every out pixel is made once, and of what its taps read.
void check_runs(const ConvolutionSizes& c, bool gradient) {
  const GroupedRuns p(c, gradient);
  const RunAxis &down = p.runs.axes[0], &across = p.runs.axes[1];
  int64_t made = 0;
  for (int64_t position = 0; position < c.batch * p.runs.image_positions; ++position) {
    const int64_t image = position / p.runs.image_positions, line = position % p.runs.image_positions;
    for (int i = 0; i < p.classes; ++i) {
      const GroupedRuns::OutClass& of = p.out_classes[i];
      const int y = static_cast<int>(line / across.period) * down.out_classes + of.of[0];
      const int x = static_cast<int>(line % across.period) * across.out_classes + of.of[1];
      if (y >= down.out || x >= across.out) continue;
      ++made;
      CHECK(terms_of(p, of, position) == wanted_terms(c, gradient, image, y, x, p.in_units));
    }
  }
  CHECK(made == c.batch * down.out * across.out);
}

// At the position of an out pixel each tap finds its pixel of x.
void check_weight_runs(const ConvolutionSizes& c) {
  const GroupedWeightRuns p(c);
  for (int64_t image = 0; image < c.batch; ++image)
    for (int y = 0; y < c.y[0]; ++y)
      for (int x = 0; x < c.y[1]; ++x)
        for (int tap = 0; tap < c.taps(); ++tap) {
          const int64_t position = image * p.runs.image_positions + int64_t{y} * p.runs.axes[1].period + x;
          const RunTap row = RunAxis::tap(c, false, 0, tap / c.kernel[1]);
          const RunTap column = RunAxis::tap(c, false, 1, tap % c.kernel[1]);
          const int at = p.runs.unit_of(row, column, 1) + static_cast<int>(position % p.tile);
          CHECK(pixel_of_unit(p.runs, p.block_groups * p.x_units, 1, position / p.tile * p.tile, at) ==
                read_pixel(c, false, image, y, x, tap));
        }
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

  TEST_CASE("weight gradients of groups in small blocks have three of them on a multiprocessor") {
    for (int stride : {1, 2}) {
      const ConvolutionSizes c = image(128, 56, 3, stride, 3, 24);
      const GroupedWeightTiles w(c);
      CHECK(w.warps == 4);
      CHECK(w.pixels == 128);
      CHECK(w.blocks() <= 396);
      CHECK(3 * (w.shared_units() * 16 + 1024) <= 228 << 10);
      CHECK(w.tiles.tile[0] * w.tiles.tile[1] <= w.pixels);
    }
    CHECK(GroupedWeightTiles(image(128, 7, 3, 1, 63, 24)).pixels == 64);  // 49 pixels an image
    const GroupedWeightTiles large(image(64, 28, 3, 1, 32, 8));
    CHECK(large.warps == 8);
    CHECK(large.pixels == 64);
    CHECK(large.blocks() <= 264);
  }

  TEST_CASE("runs of pixels have what each tap reads, and zeros beyond lines and images") {
    for (int size : {1, 2, 5, 9})
      for (int kernel : {1, 2, 3, 5})
        for (int stride : {1, 2, 3})
          for (int dilation : {1, 2})
            for (int pad : {0, 1, 4})
              for (int pad_behind : {0, 2}) {
                ConvolutionSizes c = image(2, size, kernel, stride, 2, 16);
                bool has_pixels = true;
                for (int d = 0; d < 2; ++d) {
                  c.x[d] = size + d, c.pad[d] = pad, c.dilation[d] = dilation;
                  const int room = c.x[d] + pad + pad_behind - (kernel - 1) * dilation - 1;
                  has_pixels = has_pixels && room >= 0;
                  c.y[d] = room / stride + 1;
                }
                if (!has_pixels) continue;
                INFO(size, " pixels, ", kernel, " taps, stride ", stride, ", dilation ", dilation, ", pads ", pad,
                     " and ", pad_behind);
                for (bool gradient : {false, true}) check_runs(c, gradient);
                check_weight_runs(c);
              }
  }

  TEST_CASE("runs of groups fit a multiprocessor of Hopper, with strides and without") {
    for (int channels : {8, 16, 24, 32, 40, 48, 56, 64})
      for (int stride : {1, 2}) {
        const ConvolutionSizes c = image(128, 28, 3, stride, 12, channels);
        INFO(channels, " channels, stride ", stride);
        for (bool gradient : {false, true}) {
          CHECK(fits_grouped_runs(c, gradient));
          const GroupedRuns p(c, gradient);
          CHECK(p.shared_units() <= GroupedRuns::max_block_units);
          CHECK(p.blocks() <= 132);
          CHECK(p.items * p.tile >= c.batch * p.runs.image_positions);
        }
        CHECK(fits_grouped_weight_runs(c));
        const GroupedWeightRuns w(c);
        CHECK(w.shared_units() <= GroupedWeightRuns::max_block_units);
        CHECK(w.blocks() <= 132);
        CHECK(w.items * w.tile >= c.batch * w.runs.image_positions);
        CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
      }
    CHECK(GroupedRuns(image(128, 56, 3, 1, 3, 24), false).block_groups == 3);
    CHECK(GroupedRuns(image(128, 28, 3, 1, 32, 8), false).block_groups == 8);
    CHECK(GroupedWeightRuns(image(128, 56, 3, 1, 3, 24)).group_blocks == 2);  // of two groups and of one
    CHECK(GroupedWeightRuns(image(1, 28, 7, 1, 4, 32)).tap_parts == 6);
    CHECK(GroupedRuns(image(128, 28, 7, 1, 12, 64), false).out_parts == 3);  // 400 KB of weights a group
    ConvolutionSizes wide = image(1, 28, 3, 1, 12, 24);
    wide.dilation[1] = 2000;
    CHECK(!fits_grouped_runs(wide, false));
  }

  TEST_CASE("runs take any channels but a few without groups, in parts of up to 64") {
    struct Parts {
      int channels, word_bytes, parts, units;
    };
    for (const Parts& of : {Parts{18, 4, 1, 3},
                            {36, 8, 1, 5},
                            {72, 16, 2, 5},
                            {144, 16, 3, 6},
                            {9, 2, 1, 2},
                            {27, 2, 1, 4},
                            {58, 4, 1, 8},
                            {100, 8, 2, 7},
                            {64, 16, 1, 8},
                            {128, 16, 2, 8}})
      for (int stride : {1, 2}) {
        const ConvolutionSizes c = image(64, 14, 3, stride, 1, of.channels);
        INFO(of.channels, " channels, stride ", stride);
        for (bool gradient : {false, true}) {
          CHECK(fits_grouped_runs(c, gradient));
          const GroupedRuns p(c, gradient);
          CHECK(p.shared_units() <= GroupedRuns::max_block_units);
          CHECK(p.blocks() <= 132);
          // Fewer channels where weights and planes for strides need much room.
          CHECK(p.out_parts >= of.parts);
          CHECK(p.out_units <= of.units);
          CHECK(p.out_units * p.out_parts * unit_channels >= of.channels);
          CHECK(p.in_word_bytes == of.word_bytes);
        }
        CHECK(fits_grouped_weight_runs(c));
        const GroupedWeightRuns w(c);
        CHECK(w.shared_units() <= GroupedWeightRuns::max_block_units);
        CHECK(w.blocks() <= 132);
        CHECK(w.x_parts == of.parts);
        CHECK(w.y_units == of.units);
        CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
      }
    for (int channels : {11, 18, 72}) {
      const ConvolutionSizes c = image(2, 9, 3, 2, 1, channels);
      for (bool gradient : {false, true}) check_runs(c, gradient);
    }
    CHECK(!fits_grouped_runs(image(64, 14, 3, 1, 1, 256), false));
    CHECK(!fits_grouped_weight_runs(image(64, 14, 3, 1, 1, 256)));
    CHECK(!fits_grouped_runs(image(64, 14, 3, 1, 1, 3), false));  // space to depth takes these
  }

  TEST_CASE("groups of a few channels are joined where there are enough of them, and their weights stay as many") {
    for (const auto& [channels, groups, joined] : {std::array<int, 3>{4, 32, 2}, {2, 32, 4}, {6, 8, 4}, {12, 6, 2}}) {
      const ConvolutionSizes c = image(4, 28, 3, 1, groups, channels);
      const JoinedGroups j(c);
      INFO(channels, " channels, ", groups, " groups");
      CHECK(j.count == joined);
      CHECK(j.sizes.groups == groups / joined);
      CHECK(j.sizes.x_channels == channels * joined);
      CHECK(GroupedWeightRuns(c).workspace_bytes(c) == GroupedWeightRuns(c).splits * c.weights() * 4);
      for (bool gradient : {false, true}) CHECK(fits_grouped_runs(c, gradient));
      CHECK(fits_grouped_weight_runs(c));
    }
    for (const auto& [channels, groups] : {std::array<int, 2>{24, 3}, {4, 5}, {12, 3}, {1, 16}, {3, 16}}) {
      const ConvolutionSizes c = image(4, 28, 3, 1, groups, channels);
      const JoinedGroups j(c);
      INFO(channels, " channels, ", groups, " groups");
      CHECK(j.count == 1);
      CHECK(j.sizes.groups == groups);
      CHECK(fits_grouped_runs(c, false) == (channels == 24));
    }
  }
}
