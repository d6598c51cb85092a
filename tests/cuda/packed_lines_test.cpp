#include "kernels/cuda/conv/packed_lines.h"

#include "kernels/cuda/conv/packed_sums.h"
#include "tests/cuda/square_taps.h"
#include "tests/support/kernel_candidates.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

// How convolutions of packed pixels divide their work, by brute force, and what planning takes them to cost: no device
// is needed.

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

  TEST_CASE("on Hopper packed lines are predicted as an H200 measured them, and chosen where they are quicker") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Shape {
      int64_t batch, size, from, to, stride;
      double us[3], runs_us[3];  // forward, of dx and dw, the latter of grouped_runs; 0 where none was measured
    };
    for (const Shape& s : {Shape{64, 56, 18, 18, 1, {9.8, 9.6, 14.6}, {25.3, 24.9, 34.1}},
                           {64, 28, 36, 36, 1, {7.2, 7.6, 17.3}, {14.2, 13.8, 18.1}},
                           {64, 14, 72, 72, 1, {9, 9, 16.7}, {11.8, 11.7, 16.9}},
                           {64, 28, 18, 18, 1, {5.2, 5.1, 10.7}, {10.9, 10.8, 16}},
                           {256, 28, 36, 36, 1, {17.2, 17.7, 37.4}, {31.5, 31.3, 39}},
                           {256, 56, 18, 18, 1, {28.7, 28.2, 0}, {77.3, 76.2, 0}},
                           {64, 56, 36, 36, 1, {17.9, 18.2, 0}, {32.5, 32.2, 0}},
                           {64, 112, 18, 18, 1, {30.5, 30.4, 0}, {83.1, 82.3, 0}},
                           {64, 56, 10, 10, 1, {8.5, 8.5, 0}, {18.7, 18.6, 0}},
                           {64, 28, 50, 50, 1, {17.1, 17.2, 0}, {21.1, 20.5, 0}},
                           {64, 28, 60, 60, 1, {17.1, 16.8, 0}, {27.9, 23.5, 0}},
                           {64, 28, 44, 44, 1, {12.8, 12.9, 0}, {19.7, 16.5, 0}},
                           {64, 56, 12, 12, 1, {9.6, 9.7, 0}, {17, 16.8, 0}},
                           {64, 28, 30, 30, 1, {8.2, 8.3, 0}, {12.8, 12.3, 0}},
                           {64, 14, 60, 60, 1, {9.5, 9.6, 0}, {14.3, 11.8, 0}},
                           {64, 28, 72, 72, 1, {18.2, 19.7, 0}, {26.9, 27.2, 0}},
                           {64, 56, 18, 36, 2, {7.9, 0, 0}, {16.4, 0, 0}},
                           {64, 28, 36, 72, 2, {8.4, 0, 0}, {15.6, 0, 0}},
                           {64, 56, 18, 72, 2, {11, 0, 0}, {27.8, 0, 0}}})
      for (int pass = 0; pass < 3; ++pass) {
        if (s.us[pass] == 0) continue;
        const Type x(DType::BF16, {s.batch, s.size, s.size, s.from}), w(DType::BF16, {s.to, 3, 3, s.from}),
            y(DType::BF16, {s.batch, s.size / s.stride, s.size / s.stride, s.to});
        Attrs attrs{{"channels_last", int64_t{1}}, {"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{s.stride, s.stride}}};
        if (pass > 0) attrs.set("shape", Ints((pass == 1 ? x : w).shape.begin(), (pass == 1 ? x : w).shape.end()));
        const char* const op = pass == 0 ? "conv" : pass == 1 ? "conv_dx" : "conv_dw";
        const Type* const types[] = {pass == 1 ? &y : &x, pass == 2 ? &y : &w};
        const OpCall call(get_op(op), attrs, types);
        INFO(std::string(op), " of ", s.batch, " x ", s.size, " pixels, ", s.from, " to ", s.to, " channels");
        const auto candidates = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)));
        const double chosen = candidates.front().name == "packed_lines" ? s.us[pass] : s.runs_us[pass];
        CHECK(chosen < 1.1 * std::min(s.us[pass], s.runs_us[pass]));
        for (const KernelCandidate& kernel : candidates)
          if (kernel.name == "packed_lines") CHECK(kernel.predicted_us == doctest::Approx(s.us[pass]).epsilon(0.2));
      }
  }
}
