#include "kernels/cuda/conv/packed_lines.h"

#include "kernels/cuda/conv/packed_sums.h"
#include "tests/cuda/square_taps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

// How convolutions of packed pixels divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

ConvolutionSizes packed(int64_t batch, int down, int across, int from, int to, int stride = 1) {
  ConvolutionSizes c = image(batch, down, across, stride, 1, 1, from);
  c.y_channels = to;
  return c;
}

// Do the words that 32 threads read of their pixels at once lie in different banks?
bool has_own_banks(int words, int spread) {
  std::set<int> banks;
  for (int thread = 0; thread < 32; ++thread) banks.insert(((thread / 4 << spread) * words + thread % 4) % 32);
  return banks.size() == 32;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("blocks of packed lines have memory for the lines they read, and all of them all results") {
    for (int batch : {1, 3, 64})
      for (int down : {1, 7, 28, 57})
        for (int across : {4, 8, 28, 56, 200})
          for (const auto& [from, to] : {std::pair(18, 18), {36, 36}, {72, 72}, {10, 12}, {50, 50}, {24, 40}, {18, 36}})
            for (const auto& [stride, gradient] : {std::pair(1, false), {1, true}, {2, false}}) {
              const ConvolutionSizes c = packed(batch, down, across, from, to, stride);
              if (!fits_packed_lines(c, gradient)) continue;
              INFO(batch, " of ", down, " by ", across, ", ", from, " to ", to, ", stride ", stride, ", ", gradient);
              const PackedLines p(c, gradient);
              const int pixels = batch * p.out[0] * p.out[1];
              CHECK(p.shared_bytes() <= PackedRing::max_shared_bytes);
              CHECK(p.stages <= PackedRing::max_stages);
              CHECK(p.blocks <= PackedRing::wanted_blocks);
              CHECK(int64_t{p.blocks} * p.block_pixels >= pixels);
              CHECK(int64_t{p.blocks - 1} * p.block_pixels < pixels);
              CHECK(p.teams * p.team_warps <= PackedLines::computing_warps);
              // Neighbours that share a line's address, and copies of whole words.
              CHECK(p.out[1] % (1 << p.spread) == 0);
              CHECK(p.block_pixels % (1 << p.spread) == 0);
              CHECK(p.slot_bytes() % PackedRing::border == 0);
              CHECK(p.gap_bytes >= 2 * p.in_channels);
              if (p.tiles % 2 == 0) CHECK(has_own_banks(stride * p.in_channels / 2, p.spread));
              for (int first = 0; first < pixels; first += p.block_pixels) {
                const auto line_of = [&](int pixel) {
                  const int line = pixel / p.out[1], image = line / p.out[0];
                  return image * p.in[0] + (line - image * p.out[0]) * stride;
                };
                const int last = std::min(first + p.block_pixels, pixels) - 1;
                CHECK(line_of(last) - line_of(first) + PackedRing::kernel <=
                      p.block_lines() + p.in[0] % stride * batch);
              }
            }
  }

  TEST_CASE("packed sums have a part of every word, and memory for a team's lines") {
    for (int batch : {1, 3, 64})
      for (int down : {1, 7, 28, 57})
        for (int across : {4, 8, 28, 56, 200})
          for (const auto& [from, to] :
               {std::pair(18, 18), {36, 36}, {72, 72}, {10, 12}, {50, 50}, {24, 40}, {18, 36}}) {
            const ConvolutionSizes c = packed(batch, down, across, from, to);
            if (!fits_packed_sums(c)) continue;
            INFO(batch, " of ", down, " by ", across, ", ", from, " to ", to);
            const PackedSums p(c);
            CHECK(p.shared_bytes() <= PackedRing::max_shared_bytes);
            CHECK(p.blocks() <= PackedRing::wanted_blocks);
            CHECK(int64_t{p.splits} * p.block_lines >= batch * down);
            CHECK((p.splits - 1) * p.block_lines < batch * down);
            CHECK(2 * p.x_parts * p.x_words() >= 3 * from);
            CHECK(2 * p.y_parts * p.y_words() >= to);
            CHECK(p.x_parts * p.y_parts <= p.kinds * PackedSums::warps / p.teams);
            CHECK(p.line_units * p.unit_pixels() >= across);
            CHECK(p.x_slot_bytes % PackedRing::border == 0);
            CHECK(p.dy_slot_bytes % PackedRing::border == 0);
          }
  }

  TEST_CASE("packed lines take even channels, lines of whole words of 16 bytes and windows that end beside the image") {
    CHECK(fits_packed_lines(packed(64, 56, 56, 18, 18), false));
    CHECK(fits_packed_lines(packed(64, 56, 56, 18, 18), true));
    CHECK(fits_packed_lines(packed(64, 56, 56, 18, 36, 2), false));
    CHECK(!fits_packed_lines(packed(64, 56, 56, 18, 36, 2), true));
    CHECK(!fits_packed_sums(packed(64, 56, 56, 18, 36, 2)));
    CHECK(!fits_packed_lines(packed(64, 56, 54, 18, 18), false));
    CHECK(!fits_packed_lines(packed(64, 56, 56, 19, 19), false));
    CHECK(!fits_packed_lines(packed(64, 56, 56, 32, 32), false));
    CHECK(!fits_packed_lines(packed(64, 56, 56, 88, 88), false));
    ConvolutionSizes c = packed(64, 56, 56, 18, 18);
    c.pad[0] = 0;
    CHECK(!fits_packed_lines(c, false));
    CHECK(PackedLines(packed(64, 14, 14, 72, 72), false).rows_of_warp == 1);
    CHECK(PackedLines(packed(64, 28, 28, 72, 72), false).rows_of_warp == 3);
  }
}
