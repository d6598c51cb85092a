#include "kernels/cuda/conv/grouped_bands.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

// How convolutions of groups of 24 channels in bands divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

ConvolutionSizes image(int64_t batch, int down, int across, int groups) {
  ConvolutionSizes c;
  c.batch = batch, c.groups = groups, c.x_channels = c.y_channels = GroupedBands::group_channels;
  c.x[0] = c.y[0] = down, c.x[1] = c.y[1] = across;
  for (int d = 0; d < 2; ++d) c.kernel[d] = GroupedBands::kernel, c.pad[d] = 1;
  return c;
}

// Whether each line that a band of the block reads is one of its stages, or outside the image, and counts the lines of
// results.
bool finds_lines(const GroupedBands& p, const BandBlock& block, std::vector<int>& results) {
  for (int band = 0; band < block.count; ++band) {
    const int of_all = block.first + band, of_image = of_all / p.image_bands;
    for (int i = 0; i < GroupedBands::band_lines + GroupedBands::kernel - 1; ++i) {
      const BandLine at(p, block, band * GroupedBands::band_lines + i);
      const int line = of_all % p.image_bands * GroupedBands::band_lines + i - 1;
      const bool is_inside = line >= 0 && line < p.lines;
      // A line outside the image above or below may be the next image's one, which nobody reads as this one.
      if (is_inside && (!at.is_there || at.image != of_image || at.line != line)) return false;
      if (band * GroupedBands::band_lines + i >= block.all_lines()) return false;
    }
  }
  for (int i = 0; i < block.all_lines(); ++i) {
    const BandLine at(p, block, i);
    if (at.has_results) ++results[static_cast<size_t>(at.image * p.lines + at.line)];
  }
  return block.all_lines() == block.stages() * GroupedBands::stage_lines;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("bands of blocks find their lines, and each line of results belongs to one block") {
    for (int64_t batch : {1, 3, 40})
      for (int down : {1, 4, 7, 14, 29, 56})
        for (int across : {1, 8, 29, 56, 70})
          for (int groups : {2, 3, 9, 17}) {
            const GroupedBands p(image(batch, down, across, groups), false);
            INFO(batch, " ", down, " ", across, " ", groups);
            REQUIRE(p.stages >= GroupedBands::min_stages);
            std::vector<int> of_first(static_cast<size_t>(batch * down)), covered(static_cast<size_t>(groups));
            for (int i = 0; i < p.blocks(); ++i) {
              const BandBlock block(p, i);
              REQUIRE(block.count > 0);
              std::vector<int> ignored(of_first.size());
              CHECK(finds_lines(p, block, block.first_group == 0 ? of_first : ignored));
              for (int g = 0; g < GroupedBands::block_groups && block.first_group + g < groups; ++g)
                covered[static_cast<size_t>(block.first_group + g)] += block.count;
            }
            CHECK(std::all_of(of_first.begin(), of_first.end(), [](int count) { return count == 1; }));
            CHECK(std::all_of(covered.begin(), covered.end(), [&](int count) { return count == p.bands; }));
          }
  }

  TEST_CASE("bands: the parts of shared memory follow each other, and boxes begin at borders of 128 bytes") {
    for (int across : {1, 7, 8, 28, 29, 56, 64, 70})
      for (int groups : {2, 3, 9})
        for (bool is_dw : {false, true}) {
          const ConvolutionSizes c = image(4, 20, across, groups);
          INFO(across, " ", groups, " ", is_dw);
          REQUIRE(fits_grouped_bands(c, is_dw));
          const GroupedBands p(c, is_dw);
          const int read_pixels = p.strips * GroupedBands::strip_pixels + GroupedBands::kernel - 1;
          CHECK(p.line_bytes >= p.copied_pixels() * GroupedBands::pixel_bytes);
          // The last strip of the ring's last line ends before the next part.
          CHECK((p.ring_lines() - 1) * p.line_bytes + read_pixels * GroupedBands::pixel_bytes <= p.dy_ring_at());
          CHECK(p.is_dw() == is_dw);
          if (is_dw) CHECK(p.dy_line_bytes >= p.strips * GroupedBands::strip_pixels * GroupedBands::pixel_bytes);
          CHECK(p.weights_at() >= p.dy_ring_at() + p.ring_lines() * p.dy_line_bytes);
          for (int at : {p.dy_ring_at(), p.weights_at(), p.results_at(), p.zeros_at()}) CHECK(at % 128 == 0);
          if (!p.copies_lines()) CHECK(p.line_bytes % 128 == 0);
          CHECK(p.shared_bytes() <= GroupedBands::max_shared_bytes + 256);
        }
  }

  TEST_CASE("bands take groups of 24 channels, 3 x 3 taps and images that stay as large") {
    const ConvolutionSizes c = image(128, 56, 56, 3);
    CHECK(fits_grouped_bands(c, false));
    CHECK(fits_grouped_bands(c, true));
    CHECK(GroupedBands(c, false).copies_lines());
    CHECK(!GroupedBands(image(128, 28, 28, 9), false).copies_lines());
    const auto fits_with = [&](auto change) {
      ConvolutionSizes changed = c;
      change(changed);
      return fits_grouped_bands(changed, false);
    };
    CHECK(!fits_with([](ConvolutionSizes& s) { s.groups = 1; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.x_channels = s.y_channels = 16; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.y_channels = 48; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.stride[0] = s.stride[1] = 2, s.y[0] = s.y[1] = 28; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.dilation[0] = s.dilation[1] = 2; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.pad[0] = 0, s.y[0] = 55; }));
    CHECK(!fits_with([](ConvolutionSizes& s) { s.x[1] = s.y[1] = 112; }));  // two bands of results are too wide
  }
}
