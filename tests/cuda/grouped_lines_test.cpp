#include "kernels/cuda/conv/grouped_lines.h"

#include "kernels/cuda/conv/grouped_squares.h"
#include "tests/cuda/square_taps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

// How convolutions of groups by lines divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

constexpr LinesPass passes[] = {LinesPass::Output, LinesPass::InputGradient, LinesPass::WeightGradient};

// The pixel of the ring's line that lies at a place, as the copy engine has brought it: where it is in its image, of
// which one, or outside of all.
struct Pixel {
  int64_t image;
  int row, column;
};
bool is_inside(const GroupedLines& p, const ConvolutionSizes& c, const Pixel& at) {
  return at.image < c.batch && at.row >= 0 && at.row < p.in[0] && at.column >= 0 && at.column < p.in[1];
}

// Whether every tap of every pixel of a block finds its pixel, or zeros, in lines that the block brings.
bool finds_pixels(const GroupedLines& p, const ConvolutionSizes& c, const LineBlock& block) {
  for (int q = block.first_pixel; q < block.end_pixel; ++q) {
    const LinePlace place(p, q, block.first_line);
    const int image = q / (p.out[0] * p.out[1]), row = q / p.out[1] % p.out[0], column = q % p.out[1];
    for (int down = 0; down < GroupedLines::kernel; ++down)
      for (int across = 0; across < GroupedLines::kernel; ++across) {
        const Pixel wanted{image, row * p.stride - p.pad[0] + down, column * p.stride - p.pad[1] + across};
        const int at = place.at(p, down, p.pixel_bytes) + across * p.pixel_bytes, line = place.line + down;
        const int of_all = block.first_line + line, pixel = at % p.line_bytes / p.pixel_bytes;
        const Pixel found{of_all / p.image_lines, of_all % p.image_lines - p.pad[0], pixel - p.pad[1]};
        if (at / p.line_bytes != line % p.lines || pixel >= p.line_pixels || line > block.last_line) return false;
        const bool is_same = found.image == wanted.image && found.row == wanted.row && found.column == wanted.column;
        if (is_inside(p, c, wanted) ? !is_same : is_inside(p, c, found)) return false;
      }
  }
  return true;
}

// Whether the ring holds all lines of any tile, with those of its stages that are brought with them.
bool holds_tiles(const GroupedLines& p, const LineBlock& block, int count) {
  for (int q = block.first_pixel; q < block.end_pixel; q += count) {
    const int last = std::min(q + count, block.end_pixel) - 1;
    const int first_line = LinePlace(p, q, block.first_line).line / p.stage_lines * p.stage_lines;
    const int end_line =
        (LinePlace(p, last, block.first_line).line + p.reach()) / p.stage_lines * p.stage_lines + p.stage_lines;
    if (end_line - first_line > p.lines) return false;
  }
  return true;
}

// The pixel of dy that a square reads, the first or the second of two down and across.
Pixel pixel_of_square(const GroupedSquares& p, const SquareBlock& block, const SquarePlace& place, int row, int column,
                      int down, int across) {
  const int of_all = block.first_line + place.line + row + down;
  return {of_all / p.image_lines, of_all % p.image_lines - p.pad[0], place.column + column + across - p.pad[1]};
}

// Marks every pixel of dx that a block writes in whole tiles, and tells whether each of its taps finds its pixel of dy,
// or zeros, among those that its square reads.
bool writes_pixels(const GroupedSquares& p, const ConvolutionSizes& c, const SquareBlock& block,
                   std::vector<int>& written) {
  for (int tile = block.first_tile; tile < block.end_tile; ++tile) {
    const SquarePlace place(p, tile, block.first_line);
    if (place.line < 0 || place.line + p.rows > block.last_line) return false;
    for (int in_tile = 0; in_tile < GroupedSquares::tile_pixels; ++in_tile) {
      const int row = in_tile / 2 / p.columns, column = in_tile % (2 * p.columns);
      const int down = 2 * place.row + row, across = 2 * place.column + column;
      if (down >= c.x[0] || across >= c.x[1]) continue;
      ++written[static_cast<size_t>((place.image * c.x[0] + down) * c.x[1] + across)];
      for (int tap_down = 0; tap_down < 3; ++tap_down)
        for (int tap_across = 0; tap_across < 3; ++tap_across) {
          const int from_down = down + c.pad[0] - tap_down, from_across = across + c.pad[1] - tap_across;
          if (from_down < 0 || from_down % 2 != 0 || from_down / 2 >= c.y[0]) continue;
          if (from_across < 0 || from_across % 2 != 0 || from_across / 2 >= c.y[1]) continue;
          // As the kernel has it: the middle tap reads the square's own pixel, the first tap the second of two.
          const int own = p.middle_first ? 0 : 1;
          const auto second_of = [own](int tap) { return tap == 1 ? own : tap == 0 ? 1 : 0; };
          const Pixel found =
              pixel_of_square(p, block, place, row / 2, column / 2, second_of(tap_down), second_of(tap_across));
          if (found.image != place.image || found.row != from_down / 2 || found.column != from_across / 2) return false;
        }
    }
  }
  return true;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("quotients are exact below 2^31") {
    for (int by : {1, 2, 3, 7, 9, 16, 49, 784, 3136, 12544, 65535, 1 << 20})
      for (int64_t n :
           {int64_t{0}, int64_t{1}, int64_t{by} - 1, int64_t{by}, int64_t{by} * 1000 - 1, int64_t{by} * 1000,
            (int64_t{1} << 31) - 1, ((int64_t{1} << 31) - 1) / by * by, ((int64_t{1} << 31) - 1) / by * by - 1}) {
        if (n < 0 || n >= int64_t{1} << 31) continue;
        INFO(n, " by ", by);
        CHECK(QuickDivisor(by).quotient(static_cast<int>(n)) == n / by);
      }
  }

  TEST_CASE("every tap of a pixel finds its pixel in a line that its block has brought, or zeros") {
    for (int down : {1, 2, 7, 14, 29})
      for (int across : {1, 3, 7, 15, 28, 60})
        for (int stride : {1, 2})
          for (int pad : {0, 1, 2})
            for (LinesPass pass : passes) {
              const ConvolutionSizes c = image(5, down, across, stride, pad, 3 * 17, 24);
              if (c.y[0] < 1 || c.y[1] < 1 || down + 2 * pad < 3 || across + 2 * pad < 3) continue;
              if (!fits_grouped_lines(c, pass)) {
                // A step of a weight gradient has pixels of more tiny images than a ring has lines of.
                const bool is_strided = pass == LinesPass::InputGradient && stride == 2;
                const bool is_tiny = pass == LinesPass::WeightGradient && c.y[0] * c.y[1] < 8;
                CHECK((is_strided || is_tiny));
                continue;
              }
              const GroupedLines p(c, pass);
              INFO(down, " by ", across, ", stride ", stride, ", pad ", pad, ", pass ", static_cast<int>(pass));
              const bool is_dw = pass == LinesPass::WeightGradient;
              CHECK(p.shared_bytes(pass) <= GroupedLines::max_shared_bytes);
              CHECK(p.blocks() <= GroupedLines::wanted_blocks);
              CHECK(int64_t{p.splits} * p.block_pixels >= p.pixels);
              CHECK(int64_t{p.splits - 1} * p.block_pixels < p.pixels);
              for (int64_t i = 0; i < p.blocks(); i += p.channel_blocks) {
                const LineBlock block(p, static_cast<int>(i));
                CHECK(finds_pixels(p, c, block));
                CHECK(holds_tiles(p, block, is_dw ? p.warps.step_pixels() : 16 * p.warps.tiles));
              }
            }
  }

  TEST_CASE("squares write every pixel once, and find the pixels of all of its taps") {
    for (int down : {1, 2, 7, 14, 28, 57})
      for (int across : {1, 4, 7, 15, 28, 66})
        for (int pad : {0, 1, 2})
          for (int groups : {2, 3, 8, 9, 10, 63}) {
            const ConvolutionSizes c = image(3, down, across, 2, pad, groups, 24);
            if (c.y[0] < 1 || c.y[1] < 1 || down + 2 * pad < 3 || across + 2 * pad < 3) continue;
            INFO(down, " by ", across, ", pad ", pad, ", ", groups, " groups");
            REQUIRE(fits_grouped_squares(c));
            const GroupedSquares p(c);
            CHECK(p.shared_bytes() <= GroupedSquares::max_shared_bytes);
            CHECK(p.tile_bytes() % 1024 == 0);
            CHECK(p.warps() <= GroupedSquares::max_warps);
            CHECK(p.channel_blocks * p.block_groups >= groups);
            CHECK(p.lines >= p.lines_of_tile());
            std::vector<int> written(static_cast<size_t>(c.batch * down * across));
            for (int64_t i = 0; i < p.blocks(); i += p.channel_blocks)
              CHECK(writes_pixels(p, c, SquareBlock(p, static_cast<int>(i)), written));
            CHECK(std::all_of(written.begin(), written.end(), [](int times) { return times == 1; }));
          }
    ConvolutionSizes c = image(128, 28, 28, 2, 1, 9, 24);
    CHECK(GroupedSquares(c).has_odd_boxes());
    CHECK(GroupedSquares(image(128, 28, 28, 2, 1, 63, 24)).boxes() == 3);
    CHECK(GroupedSquares(image(128, 28, 28, 2, 1, 12, 16)).block_channels() == 64);
    c.pad[1] = 2;
    CHECK(!fits_grouped_squares(c));  // both pads even or odd
    CHECK(!fits_grouped_squares(image(128, 28, 28, 1, 1, 9, 24)));
    CHECK(!fits_grouped_squares(image(128, 28, 28, 2, 1, 9, 32)));
    CHECK(!fits_grouped_squares(image(128, 28, 600, 2, 1, 9, 24)));  // a box has 256 pixels
  }

  TEST_CASE("lines of groups of a few channels fit a multiprocessor of Hopper") {
    for (int channels : {2, 4, 8, 16, 24, 32})
      for (int size : {7, 14, 28, 56, 112})
        for (LinesPass pass : passes) {
          const ConvolutionSizes c = image(128, size, size, 1, 1, 24, channels);
          INFO(channels, " channels, ", size, " pixels, pass ", static_cast<int>(pass));
          CHECK(fits_grouped_lines(c, pass) == (channels < 32 || pass == LinesPass::WeightGradient));
          if (!fits_grouped_lines(c, pass)) continue;
          const GroupedLines p(c, pass);
          CHECK(p.shared_bytes(pass) <= GroupedLines::max_shared_bytes);
          CHECK(p.line_bytes % 128 == 0);
          CHECK(p.stages <= GroupedLines::max_stages);
          CHECK(p.warps.threads() <= 512);
        }
    ConvolutionSizes c = image(128, 28, 28, 1, 1, 9, 24);
    CHECK(GroupedLines(c, LinesPass::Output).channel_blocks == 3);
    CHECK(GroupedLines(c, LinesPass::WeightGradient).workspace_bytes(c) == 44 * c.weights() * 4);
    c.dilation[1] = 2;
    CHECK(!fits_grouped_lines(c, LinesPass::Output));
    CHECK(!fits_grouped_lines(image(128, 28, 300, 1, 1, 9, 24), LinesPass::Output));  // a box has 256 pixels
    CHECK(!fits_grouped_lines(image(128, 28, 28, 1, 1, 9, 40), LinesPass::WeightGradient));
  }
}
