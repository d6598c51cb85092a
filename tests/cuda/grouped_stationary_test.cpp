#include "kernels/cuda/conv/grouped_stationary.h"

#include "kernels/cuda/conv/grouped_stationary_sums.h"
#include "tests/cuda/square_taps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

// How weight-stationary convolutions of groups divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

// A pixel of an image, or none where zeros are.
struct Pixel {
  bool is_there;
  int64_t image = 0;
  int line = 0, column = 0;

  bool operator==(const Pixel& o) const {
    if (!is_there || !o.is_there) return is_there == o.is_there;
    return image == o.image && line == o.line && column == o.column;
  }
};
Pixel pixel_of(const int (&size)[2], int64_t batch, int64_t image, int line, int column) {
  const bool inside = image < batch && line >= 0 && line < size[0] && column >= 0 && column < size[1];
  return {inside, image, line, column};
}

// What lies at a place of a plane of every so many-th line and column of an image, from these on; `valid` turns false
// where nothing was written.
struct Plane {
  int lines, zeros, every_line, every_column;
};
Pixel at_place(const StationaryImages& p, const int (&size)[2], const Plane& plane, int place, int64_t image, int line,
               int column, bool& valid) {
  const int of_image = plane.lines * p.line_pixels, all = p.images * of_image;
  if (place >= all) {
    valid = valid && place < all + plane.zeros;
    return {false};
  }
  const int in_image = place % of_image;
  return pixel_of(size, p.batch, image + place / of_image, line + in_image / p.line_pixels * plane.every_line,
                  column + in_image % p.line_pixels * plane.every_column);
}

// What a result of a column of products reads with a tap, one way: so many pixels of a plane behind the column's first.
struct Reads {
  int tap, line;
};
std::vector<Reads> reads_of(const GroupedStationary& p, int shift, int of_square) {
  std::vector<Reads> reads;
  if (p.scale == 1) {
    for (int tap = 0; tap < p.kernel; ++tap) reads.push_back({tap, shift + tap});
    return reads;
  }
  for (int i = 0; i < SquareTap::count(of_square); ++i) {
    const SquareTap tap(of_square, i);
    reads.push_back({tap.tap, tap.ahead});
  }
  return reads;
}

// The pixel that a tap of a result needs, one way; strides of a gradient leave out taps between its pixels.
bool is_wanted(const ConvolutionSizes& c, bool gradient, int d, int result, int tap, int& pixel) {
  if (!gradient) {
    pixel = result * c.stride[d] - c.pad[d] + tap;
    return true;
  }
  const int own = c.stride[d] > 1 ? tap : c.kernel[d] - 1 - tap, scaled = result + c.pad[d] - own;
  pixel = scaled >= 0 ? scaled / c.stride[d] : -1;
  return scaled % c.stride[d] == 0;
}

// Whether every tap of every result of a tile's chunks finds its pixel, or zeros.
bool makes_tile(const GroupedStationary& p, const ConvolutionSizes& c, const StationaryTile& tile,
                std::vector<int>& written) {
  bool valid = true;
  // Of one result.
  const auto check = [&](int first, int column, const Pixel& result, int shift, int row, int across) {
    int taps = 0, wanted_taps = 0;
    for (int down_tap = 0; down_tap < p.kernel; ++down_tap)
      for (int across_tap = 0, unused = 0; across_tap < p.kernel; ++across_tap)
        wanted_taps += is_wanted(c, p.gradient, 0, result.line, down_tap, unused) &&
                       is_wanted(c, p.gradient, 1, result.column, across_tap, unused);
    for (const Reads& down : reads_of(p, shift, row))
      for (const Reads& beside : reads_of(p, 0, across)) {
        ++taps;
        const int place = first + column + down.line / p.planes_down * p.line_pixels + beside.line / p.planes_across;
        const Pixel found = at_place(p, p.in, {p.plane_lines, p.zero_pixels(), p.planes_down, p.planes_across}, place,
                                     tile.image, tile.line * p.stride - p.pad[0] + down.line % p.planes_down,
                                     tile.pixel * p.stride - p.pad[1] + beside.line % p.planes_across, valid);
        int wanted[2];
        valid = valid && is_wanted(c, p.gradient, 0, result.line, down.tap, wanted[0]) &&
                is_wanted(c, p.gradient, 1, result.column, beside.tap, wanted[1]) &&
                found == pixel_of(p.in, p.batch, result.image, wanted[0], wanted[1]);
      }
    valid = valid && taps == wanted_taps;
  };
  for (int image = 0; image < tile.images; image += p.chunk_images)
    for (int line = 0; line < tile.lines; line += p.chunk_rows()) {
      const int first = image * p.image_pixels() + line / p.shifts * p.line_pixels;
      // What products read of the last plane of the last stage lies in the block's memory.
      const int64_t end = int64_t{first + p.columns + p.reach_down * p.line_pixels + p.reach_across} * p.pixel_bytes,
                    planes = int64_t{p.stages} * p.stage_bytes() - p.plane_bytes();
      valid = valid && p.tile_border + planes + end <= p.shared_bytes();
      for (int i = 0; i < p.columns; ++i) {
        const ChunkColumn column(p, i);
        if (!column.is_there(p)) continue;
        for (int shift = 0; shift < p.shifts; ++shift)
          for (int row = 0; row < p.scale; ++row)
            for (int across = 0; across < p.scale; ++across) {
              const int of_tile = line + column.line * p.shifts + shift;
              const Pixel result =
                  pixel_of(p.results, p.batch, tile.image + image + column.image, (tile.line + of_tile) * p.scale + row,
                           (tile.pixel + column.pixel) * p.scale + across);
              if (!result.is_there) continue;  // the copy engine leaves it out
              const int in_box = column.in_box(p, shift) + row * p.scale * p.tile_pixels + across;
              valid = valid && (in_box + 1) * p.pixel_bytes + p.spare_bytes <= p.chunk_bytes();
              ++written[static_cast<size_t>((result.image * p.results[0] + result.line) * p.results[1] +
                                            result.column)];
              check(first, i, result, shift, row, across);
            }
      }
    }
  return valid;
}

// Whether every pixel of dy of a tile meets the pixels of x of its taps.
bool sums_tile(const GroupedStationarySums& p, int tile, std::vector<int>& read) {
  const int of_images = p.of_down.quotient(tile), line = (tile - of_images * p.down) * p.tile_lines;
  const int64_t image = int64_t{of_images} * p.images;
  bool valid = true;
  for (int place = 0; place < p.steps() * p.step_pixels; ++place)
    for (int shift = 0; shift < p.shifts; ++shift) {
      const Pixel dy =
          at_place(p, p.out, {p.dy_lines, p.dy_zeros(), p.shifts, 1}, place, image, line + shift, 0, valid);
      if (dy.is_there) ++read[static_cast<size_t>((dy.image * p.out[0] + dy.line) * p.out[1] + dy.column)];
      for (int down = 0; down < p.kernel; ++down)
        for (int across = 0; across < p.kernel; ++across) {
          const int of_planes = shift + down,
                    at = place + of_planes / p.planes_down * p.line_pixels + across / p.planes_across;
          const Pixel x = at_place(p, p.in, {p.plane_lines, p.x_zeros(), p.planes_down, p.planes_across}, at, image,
                                   line * p.stride - p.pad[0] + of_planes % p.planes_down,
                                   across % p.planes_across - p.pad[1], valid);
          valid = valid && (!dy.is_there || x == pixel_of(p.in, p.batch, dy.image, dy.line * p.stride - p.pad[0] + down,
                                                          dy.column * p.stride - p.pad[1] + across));
        }
    }
  return valid;
}

bool all_once(const std::vector<int>& counts) {
  return std::all_of(counts.begin(), counts.end(), [](int times) { return times == 1; });
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("chunks of planes write every result once, and find the pixels of all of its taps") {
    for (int down : {1, 2, 7, 14, 29})
      for (int across : {1, 3, 7, 15, 28, 57, 130})
        for (int pad : {0, 1, 2})
          for (const auto& [groups, channels] : {std::pair(7, 8), {7, 24}, {7, 40}, {7, 64}, {1, 24}, {1, 48}})
            for (const auto& [stride, gradient] : {std::pair(1, false), {1, true}, {2, false}, {2, true}}) {
              const ConvolutionSizes c = image(5, down, across, stride, pad, groups, channels);
              if (down + 2 * pad < 3 || across + 2 * pad < 3) continue;
              if (gradient && stride == 2 && pad != 1) continue;
              INFO(down, " by ", across, ", pad ", pad, ", ", groups, " groups of ", channels, " channels, stride ",
                   stride, ", ", gradient);
              REQUIRE(fits_grouped_stationary(c, gradient));
              const GroupedStationary p(c, gradient);
              CHECK(p.shared_bytes() <= StationaryImages::max_shared_bytes);
              CHECK(p.blocks() <= StationaryImages::wanted_blocks);
              std::vector<int> tiles(static_cast<size_t>(p.tiles)),
                  last = tiles,
                  written(static_cast<size_t>(c.batch * p.results[0]) * static_cast<size_t>(p.results[1]));
              for (int i = 0; i < p.blocks(); ++i) {
                const StationaryBlock mine(p, i);
                const bool is_last = mine.channel + mine.channels == p.channels();
                CHECK(mine.parts == (mine.channels > p.part_units * unit_channels ? p.parts : 1));
                if (mine.channel != 0 && !is_last) continue;
                for (StationaryTiles of_block(p, mine); of_block.are_left(); of_block.advance())
                  ++(is_last ? last : tiles)[static_cast<size_t>(of_block.tile())];
              }
              CHECK(all_once(last));
              if (p.channel_blocks > 1) CHECK(all_once(tiles));
              for (int tile = 0; tile < p.tiles; ++tile) CHECK(makes_tile(p, c, StationaryTile(p, tile), written));
              CHECK(all_once(written));
            }
  }

  TEST_CASE("stationary sums read every pixel of dy once, beside the pixels of x of all taps") {
    for (int down : {1, 2, 7, 14, 29})
      for (int across : {1, 3, 7, 15, 28, 57, 130})
        for (int pad : {0, 1, 2})
          for (const auto& [groups, channels] : {std::pair(7, 8), {7, 24}, {7, 40}, {7, 64}, {1, 24}, {1, 48}})
            for (int stride : {1, 2}) {
              const ConvolutionSizes c = image(5, down, across, stride, pad, groups, channels);
              if (down + 2 * pad < 3 || across + 2 * pad < 3) continue;
              INFO(down, " by ", across, ", pad ", pad, ", ", groups, " groups of ", channels, " channels, stride ",
                   stride);
              REQUIRE(fits_grouped_stationary_sums(c));
              const GroupedStationarySums p(c);
              CHECK(p.shared_bytes() <= StationaryImages::max_shared_bytes);
              CHECK(p.blocks() <= StationaryImages::wanted_blocks);
              CHECK(p.dy_bytes() % StationaryImages::tile_border == 0);
              std::vector<int> read(static_cast<size_t>(c.batch * c.y[0]) * static_cast<size_t>(c.y[1]));
              for (int tile = 0; tile < p.tiles; ++tile) CHECK(sums_tile(p, tile, read));
              CHECK(all_once(read));
            }
  }

  TEST_CASE("blocks have as many lines each, though the last tiles of images have fewer") {
    const GroupedStationary p(image(64, 28, 28, 1, 1, 4, 64), false);
    REQUIRE(p.down == 2);
    REQUIRE(p.tile_lines * p.down > p.out[0]);
    for (int i = 0; i < p.blocks(); ++i) {
      int lines = 0;
      const StationaryBlock mine(p, i);
      for (StationaryTiles tiles(p, mine); tiles.are_left(); tiles.advance())
        lines += StationaryTile(p, tiles.tile()).lines;
      CHECK(lines == p.batch * p.out[0] / p.splits);
    }
  }

  TEST_CASE("blocks of groups that share registers have whole groups and as much work each") {
    const GroupedStationary small(image(128, 56, 56, 1, 1, 9, 24), false);
    CHECK(small.channels_of_block() == 48);
    CHECK(small.shifts == 2);
    CHECK(small.channel_blocks == 5);
    CHECK(small.last_splits < 0.7 * small.splits);  // one group instead of two
    const GroupedStationary large(image(128, 28, 28, 1, 1, 5, 48), false);
    CHECK(large.channels_of_block() == 48);
    CHECK(large.shifts == 1);
    CHECK(large.steps() == 3);
    CHECK(GroupedStationarySums(image(128, 28, 28, 1, 1, 5, 48)).columns() == 48);
    CHECK(GroupedStationarySums(image(128, 28, 28, 1, 1, 5, 24)).columns() == 24);
    ConvolutionSizes c = image(128, 28, 28, 1, 1, 64, 4);
    CHECK(!fits_grouped_stationary(c, false));
    CHECK(fits_grouped_stationary(image(128, 28, 28, 1, 1, 1, 64), false));
    const GroupedStationary few(image(128, 28, 28, 1, 1, 4, 8), false), many(image(128, 28, 28, 1, 1, 5, 8), false);
    CHECK(few.parts_there() == 1);
    CHECK(few.channels_read() == 64);  // as rows of 128 bytes have
    CHECK(many.parts_there() == 2);
    CHECK(StationaryBlock(few, 0).parts == 1);
    CHECK(StationaryBlock(many, 0).parts == 2);
    CHECK(!fits_grouped_stationary(image(128, 28, 28, 1, 1, 2, 72), false));
    c = image(128, 28, 28, 1, 1, 2, 64);
    CHECK(fits_grouped_stationary(c, true));
    ConvolutionSizes strided = image(128, 28, 28, 2, 1, 2, 64);
    CHECK(fits_grouped_stationary(strided, true));
    strided.pad[1] = 2;
    CHECK(!fits_grouped_stationary(strided, true));  // pads in front of 1 alone
    CHECK(!fits_grouped_stationary(image(128, 28, 28, 3, 1, 2, 64), false));
    c.dilation[0] = 2;
    CHECK(!fits_grouped_stationary(c, true));
    // Squares of one image of 7 x 7 fill 56 columns, and four images of 7 x 7 pixels fill 128 by pairs of lines.
    const GroupedStationary squares(image(128, 14, 14, 2, 1, 32, 32), true),
        images(image(128, 7, 7, 1, 1, 32, 32), false);
    CHECK(squares.columns == GroupedStationary::narrowest);
    CHECK(images.columns == GroupedStationary::widest);
    CHECK(images.chunk_images == 4);
    CHECK(!fits_grouped_stationary_sums(image(128, 28, 300, 1, 1, 2, 64)));  // a box has 256 pixels
  }
}
