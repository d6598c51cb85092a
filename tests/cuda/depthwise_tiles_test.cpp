#include "kernels/cuda/conv/depthwise_columns.h"
#include "kernels/cuda/conv/depthwise_images.h"
#include "kernels/cuda/conv/depthwise_lines.h"
#include "kernels/cuda/conv/depthwise_packed.h"
#include "kernels/cuda/conv/depthwise_pairs.h"
#include "kernels/cuda/conv/depthwise_sparse.h"
#include "tests/cuda/convolution_tiles.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <doctest/doctest.h>

#include <set>

// How our own depthwise convolutions divide their work, by brute force: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;
using namespace plimsoll::testing;

namespace {

// Each out pixel of a line is in one spot of one tile; what its taps read in the planes is what they should meet.
void check_columns(const DepthwisePlanes& p, const ConvolutionSizes& c) {
  std::set<int> made;
  CHECK(p.columns <= 64);
  for (int tile = 0; tile < p.column_tiles; ++tile)
    for (int of_images = 0; of_images < p.images; ++of_images)
      for (int at = 0; at < p.image_spots * DepthwisePlanes::spot; ++at) {
        const int x = tile * p.width + at;
        if (at >= p.width || x >= p.out[1]) continue;
        if (of_images == 0) CHECK(made.insert(x).second);
        CHECK(at < p.period);
        for (int tap = 0; tap < c.kernel[1]; ++tap) {
          // Columns behind a row are the next row's first, or zeros.
          const int column = of_images * p.period + at + tap, image = column / p.period;
          const int wanted = pixel_or_none(x + p.first[1] + tap, p.in[1]);
          const int found = pixel_or_none(tile * p.width + p.first[1] + column % p.period, p.in[1]);
          if (image == of_images)
            CHECK(found == wanted);
          else
            CHECK((found == -1 && wanted == -1));
        }
      }
  CHECK(made.size() == static_cast<size_t>(p.out[1]));
  CHECK(p.row_tiles * p.rows >= p.out[0]);
  CHECK(p.in_rows * p.row_units < p.plane_units);
}

// Each column of dy and the zero behind it are in one chunk, and no chunk reaches behind the row.
void check_chunks(const DepthwiseWeightBands& p) {
  std::set<int> columns;
  for (int run = 0; run < p.runs; ++run)
    for (int at = 0; at < 16 * p.run_chunks; ++at)
      if (const int column = 8 * run * p.run_units + at; column < p.images * p.period && column % p.period <= p.width)
        CHECK(columns.insert(column).second);
  CHECK(columns.size() == static_cast<size_t>(p.images * (p.width + 1)));
  CHECK(8 * (p.runs - 1) * p.run_units + 16 * p.run_chunks <= 8 * p.row_units);
}

// Columns of a row of planes hold what a spot's taps meet, as rows of the run do for rows: behind an image are the
// zeros before the next one.
void check_run_of_images(const DepthwiseColumns& p, const ConvolutionSizes& c) {
  const auto check_taps = [&](int d, int period, int first_out, int end_out, bool ends_in_zeros) {
    for (int at = first_out; at < end_out; ++at)
      for (int tap = 0; tap < c.kernel[d]; ++tap) {
        const int place = at - first_out + tap, wanted = pixel_or_none(at + p.first[d] + tap, p.in[d]);
        const int found = pixel_or_none((place < period ? first_out : 0) + place % period + p.first[d], p.in[d]);
        CHECK(found == wanted);
        if (!ends_in_zeros) CHECK(place < period);
      }
  };
  check_taps(0, p.row_period, 0, p.out[0], true);
  for (int tile = 0; tile < p.column_tiles; ++tile)
    check_taps(1, p.period, tile * p.width, std::min((tile + 1) * p.width, p.out[1]), p.column_tiles == 1);
  CHECK(p.column_tiles * p.width >= p.out[1]);
}

// A box from `tile_first` on holds every pixel of a row that taps read for results [first, end).
template <typename Plan>
void check_box(const Plan& p, const ConvolutionSizes& c, int first, int end, int tile_first) {
  const int stride = c.stride[1];
  for (int at = first; at < end; ++at)
    for (int tap = 0; tap < c.kernel[1]; ++tap) {
      const int whole = p.gradient ? at + c.pad[1] - tap : at * stride - c.pad[1] + tap;
      const int pixel = p.gradient ? whole / stride : whole;
      if (whole < 0 || (p.gradient && whole % stride != 0) || pixel >= p.in[1]) continue;
      CHECK(pixel >= tile_first + p.across.first);
      CHECK(pixel < tile_first + p.across.first + p.across.pixels);
    }
}

void check_pairs(const DepthwisePairs& p, const ConvolutionSizes& c) {
  for (int tile = 0; tile < p.column_tiles; ++tile) {
    const int first = tile * p.width;
    const int in_first = p.steps == PairSteps::One ? first : p.steps == PairSteps::Two ? 2 * first : first / 2;
    check_box(p, c, first, std::min(first + p.width, p.out[1]), in_first);
  }
  CHECK(p.column_tiles * p.width >= p.out[1]);
  CHECK(p.rows * p.row_tiles >= p.out[0]);
  CHECK(p.rows * (p.row_tiles - 1) < p.out[0]);
  CHECK(p.images * p.strips <= DepthwisePairs::max_strips);
  CHECK(p.images * p.image_groups >= c.batch);
  CHECK(p.across.pixels <= 256);  // of a box
  CHECK(p.stages >= 2);
  CHECK(p.shared_bytes() <= DepthwisePairs::most_shared_bytes);
}

void check_sparse_tiles(const SparseTiles& p, const ConvolutionSizes& c) {
  for (int tile = 0; tile < p.column_tiles; ++tile)
    check_box(p, c, tile * p.width, std::min((tile + 1) * p.width, p.out[1]), tile * p.width * p.stride);
  CHECK(p.column_tiles * p.width >= p.out[1]);
  CHECK(p.strips * SparseTiles::strip >= p.width);
  const int places = 1 << p.log_places;
  CHECK(p.strips <= places);
  CHECK(p.images * places == SparseTiles::tile_strips);
  CHECK(p.tiles * p.images >= c.batch * p.column_tiles);
  CHECK(p.tile_pairs * SparseTiles::tiles_at_once >= p.tiles);
  CHECK(p.across.pixels <= 256);  // of a box
}

void check_sparse(const DepthwiseSparse& p, const ConvolutionSizes& c) {
  check_sparse_tiles(p, c);
  // The two tiles of a row are apart, and at other banks.
  CHECK(p.second_in >= p.images * p.across.pixels);
  CHECK(p.second_in % SparseTiles::turn == SparseTiles::half_turn);
  CHECK(p.second_out >= p.images * p.width);
  CHECK(p.second_out % SparseTiles::turn == SparseTiles::half_turn);
  CHECK(p.first_zero >= p.second_in + p.images * p.across.pixels);
  CHECK(p.shares * p.share_rows == p.rows());
  CHECK(p.splits <= p.shares);
  CHECK(p.stages >= 2);
  CHECK(p.shared_bytes() <= SparseTiles::most_shared_bytes);
}

void check_sparse_weights(const DepthwiseSparseWeights& p, const ConvolutionSizes& c) {
  check_sparse_tiles(p, c);
  // Every row of dy that a row of x meets is among those of its step, and has the tap there.
  const int stride = c.stride[0], lines = p.span * p.dy_rows;
  for (int x = 0; x < c.x[0]; ++x)
    for (int tap = 0; tap < c.kernel[0]; ++tap) {
      const int of_dy = x + c.pad[0] - tap, step = x / DepthwiseSparseWeights::step_rows;
      if (of_dy < 0 || of_dy % stride != 0 || of_dy / stride >= c.y[0]) continue;
      const int line = of_dy / stride - (step * p.dy_rows + p.first_dy);
      CHECK(line >= 0);
      CHECK(line < lines);
      CHECK(p.tap_down(x % DepthwiseSparseWeights::step_rows, line) == tap);
    }
  CHECK(p.second_dy >= p.images * p.width);
  CHECK(p.dy_row >= p.second_dy + p.images * p.width);
  CHECK(p.dy_row % SparseTiles::turn == SparseTiles::half_turn);  // every other row of dy is at other banks
  CHECK(p.second_x >= p.images * p.across.pixels);
  CHECK(p.x_row >= p.second_x + p.images * p.across.pixels + SparseTiles::turn);
  CHECK(p.row_pairs * DepthwiseSparseWeights::step_rows >= p.in[0]);
  for (int pair = 0; pair < p.row_pairs; ++pair) {
    const int above = p.stages_above(pair * DepthwiseSparseWeights::step_rows), first = p.first_dy + pair * p.dy_rows;
    if (above > 0) CHECK(first + above * p.dy_rows <= 0);
    if (above < p.span - 1) CHECK(first + (above + 1) * p.dy_rows > 0);
  }
  CHECK(p.splits <= p.steps);
  CHECK(p.stages >= p.span);  // or a step would wait for what never comes
  CHECK(p.shared_bytes() <= SparseTiles::most_shared_bytes);
  CHECK(p.workspace_bytes(c) == p.splits * c.weights() * 4);
  if (!p.turns()) return;
  // Segments have all columns of a tile, and the threads that read them at once are at different banks.
  constexpr int segments = DepthwiseSparseWeights::segments, segment = DepthwiseSparseWeights::segment;
  const int of_image = segments / p.images;
  CHECK(of_image * p.images == segments);
  CHECK(of_image * segment == p.width);
  std::set<int> banks;
  for (int i = 0; i < segments; ++i) {
    const int pixel = i / of_image * p.across.pixels + i % of_image * segment;
    CHECK(pixel % 2 == 0);
    CHECK(banks.insert(pixel % SparseTiles::turn).second);
  }
}

// Each line is in the share of one block, of whose threads each has two channels of a strip.
void check_packed(const DepthwisePacked& p, const ConvolutionSizes& c) {
  CHECK(p.strip * p.strips >= c.y[1]);
  CHECK(p.strip * (p.strips - 1) < c.y[1]);
  CHECK(2 * p.image_pairs >= c.y[0]);
  CHECK(2 * (p.image_pairs - 1) < c.y[0]);
  CHECK(p.line_bytes % 16 == 0);
  CHECK(p.stage_pairs >= 1);
  CHECK(p.threads() <= DepthwisePacked::max_threads);
  CHECK(p.splits <= p.pairs);
  CHECK(p.stages >= 2);
  CHECK(p.shared_bytes() <= DepthwisePacked::most_shared_bytes);
  CHECK(p.workspace_bytes(c) == p.splits * c.weights() * 4);
}

void check_strips(const DepthwiseColumns& p, const ConvolutionSizes& c) {
  check_run_of_images(p, c);
  CHECK(p.image_strips * DepthwiseColumns::strip >= p.width);
  CHECK(p.row_pixels >= (p.images - 1) * p.period + p.image_strips * DepthwiseColumns::strip + c.kernel[1] - 1);
  CHECK(p.copies_fit());
  CHECK(p.threads() <= DepthwiseColumns::max_threads);
  CHECK(p.shared_bytes() <= 227 << 10);
  CHECK(int64_t{p.splits} * p.block_rows >= p.run_rows);
  CHECK(int64_t{p.splits - 1} * p.block_rows < p.run_rows);
}

void check_images(const SmallImages& p, int64_t shared_bytes) {
  CHECK(p.channel_blocks * SmallImages::block_channels >= p.channels);
  CHECK((p.channel_blocks - 1) * SmallImages::block_channels < p.channels);
  CHECK(p.splits >= 1);
  CHECK(p.splits <= p.batch);  // or a block would have no image
  CHECK(p.most_images() * p.splits >= p.batch);
  CHECK(p.most_slots() * SmallImages::slot_images >= p.most_images());
  CHECK(p.slots >= std::min<int64_t>(2, p.most_slots()));
  CHECK(p.tap_rows % 2 == 1);
  CHECK(p.tap_rows >= p.kernel[0]);
  CHECK(p.tap_rows <= SmallImages::max_tap_rows);
  CHECK(shared_bytes <= SmallImages::most_shared_bytes);
}

// Threads have all channels, and pieces all taps of the longer side.
void check_lanes(const DepthwiseLanes& p, const ConvolutionSizes& c) {
  CHECK(p.vectors * p.length == c.groups);
  CHECK(p.vector_threads <= DepthwiseLanes::max_vector_threads);
  CHECK(p.vector_blocks * p.vector_threads >= p.vectors);
  CHECK((p.vector_blocks - 1) * p.vector_threads < p.vectors);
  CHECK(c.kernel[p.along] >= c.kernel[p.beside]);
  CHECK(p.tap_columns * p.held >= c.kernel[p.along]);
  CHECK((p.tap_columns - 1) * p.held < c.kernel[p.along]);
  CHECK(p.tap_rows == c.kernel[p.beside] * p.tap_columns);
}

// Calls `check` with convolutions of 72 channels of many sizes: those that kernels by pairs of channels take.
void for_each_size(llvm::function_ref<void(const ConvolutionSizes&)> check) {
  for (int64_t batch : {1, 5, 128})
    for (int size : {1, 7, 14, 16, 28, 56, 57, 75, 112, 130})
      for (int kernel : {3, 5, 7})
        for (int stride : {1, 2})
          for (int pad : {0, 1, kernel / 2, kernel - 1, kernel + 2}) {
            if (size + 2 * pad < kernel || (kernel == 7 && stride == 2)) continue;
            ConvolutionSizes c = image(batch, size, kernel, stride, 72, 1);
            for (int d = 0; d < 2; ++d) c.pad[d] = pad, c.y[d] = (size + 2 * pad - kernel) / stride + 1;
            INFO(batch, " images of ", size, ", ", kernel, " taps, stride ", stride, ", pad ", pad);
            check(c);
          }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("planes of depthwise tiles hold every pixel that a spot's taps meet, and zeros where there is none") {
    for (int64_t batch : {1, 5})
      for (int size : {1, 7, 14, 28, 57, 75, 130})
        for (int kernel : {3, 5, 7})
          for (int pad : {0, 1, kernel / 2, kernel - 1, kernel + 2}) {
            ConvolutionSizes c = image(batch, size, kernel, 1, 40, 1);
            for (int d = 0; d < 2; ++d) c.pad[d] = pad, c.y[d] = size + 2 * pad - kernel + 1;
            if (c.y[0] < 1) continue;
            INFO(batch, " images of ", size, ", ", kernel, " taps, pad ", pad);
            for (bool gradient : {false, true}) check_columns(DepthwiseBands(c, gradient), c);
            CHECK(fits_depthwise_columns(c) == (kernel == 3));
            if (kernel == 3) check_strips(DepthwiseColumns(c), c);
            check_columns(DepthwiseWeightBands(c), c);
            const DepthwiseWeightBands w(c);
            CHECK(w.row_units % 4 == 2);  // four rows of a plane are read without conflicts
            check_chunks(w);
            const DepthwiseBands bands(c, false);
            CHECK(bands.parts * bands.spots() <= DepthwisePlanes::most_spots);
            CHECK(bands.parts * bands.part_rows >= bands.rows);
            CHECK(bands.parts * bands.part_rows <= bands.in_rows);
            CHECK((bands.parts == 1 || bands.part_rows <= kernel + 1));
            CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
          }
  }

  TEST_CASE("depthwise bands fit the shared memory of a block") {
    const ConvolutionSizes wide = image(128, 56, 7, 1, 96, 1);
    const DepthwiseBands bands(wide, false);
    CHECK(bands.slots == 32);
    CHECK(bands.columns == 64);
    CHECK(bands.splits * 6 >= bands.items);  // equal shares, but for the last
    CHECK(3 * (bands.shared_bytes(wide) + 1024) <= 228 << 10);
    CHECK(2 * (DepthwiseWeightBands(wide).shared_bytes(wide) + 1024) <= 228 << 10);
    const DepthwiseBands small(image(5, 7, 7, 1, 768, 1), true);
    CHECK(small.images == 4);
    CHECK(small.items == 2);  // the last image stands alone
    CHECK(fits_depthwise_bands(image(1, 9, 5, 1, 16, 1)));
    CHECK(!fits_depthwise_bands(image(1, 9, 5, 2, 16, 1)));
    CHECK(!fits_depthwise_bands(image(1, 9, 5, 1, 12, 1)));
    CHECK(fits_depthwise(image(1, 9, 5, 2, 13, 1)));
  }

  TEST_CASE("boxes of pairs of channels hold every pixel that a tile's taps meet, and fit a block's shared memory") {
    for_each_size([](const ConvolutionSizes& c) {
      CHECK(fits_depthwise_pairs(c));
      for (bool gradient : {false, true}) check_pairs(DepthwisePairs(c, gradient), c);
    });
    const ConvolutionSizes small = image(128, 7, 7, 1, 768, 1);
    CHECK(DepthwisePairs(small, false).blocks() == 132);
    CHECK(!fits_depthwise_pairs(image(1, 9, 7, 2, 16, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 3, 16, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 1, 12, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 1, 16, 16)));
  }

  TEST_CASE("tiles of sparse products hold every pixel that their taps meet, and fit a block's shared memory") {
    for_each_size([](const ConvolutionSizes& c) {
      const bool has_stride = c.stride[0] != 1;
      CHECK(fits_depthwise_sparse(c) != has_stride);
      CHECK(fits_depthwise_sparse_weights(c));
      check_sparse_weights(DepthwiseSparseWeights(c), c);
      if (has_stride) return;
      for (bool gradient : {false, true}) check_sparse(DepthwiseSparse(c, gradient), c);
    });
    // Small images are shared out whole, since a block would read most rows of pixels of a part.
    const DepthwiseSparse small(image(128, 7, 7, 1, 768, 1), false), large(image(128, 56, 7, 1, 96, 1), false);
    CHECK(small.images == 8);
    CHECK(small.share_rows == 7);
    CHECK(small.blocks() == 120);
    CHECK(large.images == 1);
    CHECK(large.share_rows == 1);
    CHECK(large.blocks() == 132);
    CHECK(large.most_rows == 82 + 6);
    CHECK(DepthwiseSparse(image(128, 112, 7, 1, 64, 1), true).column_tiles == 2);
    for (int size : {14, 28, 56}) CHECK(DepthwiseSparseWeights(image(128, size, 7, 1, 96, 1)).turns());
    for (int size : {7, 16, 57, 112}) CHECK(!DepthwiseSparseWeights(image(128, size, 7, 1, 96, 1)).turns());
    CHECK(!DepthwiseSparseWeights(image(128, 14, 3, 1, 96, 1)).turns());
    CHECK(!DepthwiseSparseWeights(image(128, 28, 5, 2, 96, 1)).turns());
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 7, 2, 16, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 3, 16, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 1, 12, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 1, 16, 16)));
  }

  TEST_CASE("whole small images are shared out, and fit a block's shared memory") {
    for (int channels : {8, 40, 168, 448, 768, 2048, 4800})
      for (int64_t batch : {1, 5, 37, 128, 512})
        for (int size : {1, 4, 7, 8})
          for (int down : {1, 3, 5, 7, 9})
            for (int across : {1, 3, 9, 15}) {
              ConvolutionSizes c = image(batch, size, 1, 1, channels, 1);
              c.kernel[0] = down, c.kernel[1] = across;
              for (int d = 0; d < 2; ++d) c.pad[d] = c.kernel[d] / 2, c.y[d] = size;
              INFO(batch, " images of ", size, ", ", channels, " channels, ", down, " x ", across, " taps");
              CHECK(fits_depthwise_images(c));
              for (bool gradient : {false, true}) {
                const DepthwiseImages p(c, gradient);
                check_images(p, p.shared_bytes());
                CHECK(p.row_elements - SmallImages::side >= SmallImages::side);
              }
              const DepthwiseImageWeights w(c);
              check_images(w, w.shared_bytes());
              CHECK((!w.joined || w.splits <= DepthwiseImageWeights::max_cluster));
              CHECK((!w.joined || w.splits == 1 || w.channel_blocks <= DepthwiseImageWeights::max_clusters));
              CHECK(w.workspace_bytes(c) == (w.joined ? 0 : w.splits * c.weights() * 4));
            }
    const DepthwiseImageWeights few(image(128, 8, 9, 1, 304, 1)), many(image(128, 7, 7, 1, 768, 1));
    CHECK(few.joined);
    CHECK(few.splits == 8);
    CHECK(!many.joined);
    CHECK(many.splits == 5);
    CHECK(!fits_depthwise_images(image(1, 9, 3, 1, 16, 1)));
    CHECK(!fits_depthwise_images(image(1, 8, 3, 2, 16, 1)));
    CHECK(!fits_depthwise_images(image(1, 8, 11, 1, 16, 1)));
    CHECK(!fits_depthwise_images(image(1, 8, 3, 1, 12, 1)));
    CHECK(!fits_depthwise_images(image(1, 8, 3, 1, 16, 16)));
    ConvolutionSizes uneven = image(1, 8, 4, 1, 16, 1);
    for (int d = 0; d < 2; ++d) uneven.y[d] = 8, uneven.pad[d] = 1;
    CHECK(!fits_depthwise_images(uneven));
  }

  TEST_CASE("rows of columns are copied in pieces that channels are whole numbers of") {
    for (const auto& [channels, piece] : {std::pair{40, 8}, {100, 4}, {42, 2}}) {
      const ConvolutionSizes c = image(5, 9, 3, 1, channels, 1);
      CHECK(fits_depthwise_columns(c));
      CHECK(DepthwiseColumns(c).piece_channels == piece);
      CHECK(DepthwiseColumns(c).unit_blocks * DepthwiseColumns::slots >= channels);
    }
    CHECK(!fits_depthwise_columns(image(5, 9, 3, 1, 25, 1)));
    CHECK(!fits_depthwise_columns(image(5, 9, 3, 2, 40, 1)));
  }

  TEST_CASE("lines as they lie in memory are shared out, and fit a block's shared memory") {
    for (int64_t batch : {1, 5, 256})
      for (int size : {4, 8, 14, 16, 28, 56, 112})
        for (int channels : {2, 10, 30, 36, 64, 100}) {
          const ConvolutionSizes c = image(batch, size, 3, 1, channels, 1);
          INFO(batch, " images of ", size, ", ", channels, " channels");
          if (size * channels % 8 != 0) {
            CHECK(!fits_depthwise_packed(c));
          } else if (fits_depthwise_packed(c)) {
            check_packed(DepthwisePacked(c), c);
          }
        }
    CHECK(fits_depthwise_packed(image(256, 56, 3, 1, 36, 1)));
    CHECK(DepthwisePacked(image(256, 56, 3, 1, 36, 1)).threads() == 504);
    CHECK(!fits_depthwise_packed(image(5, 56, 3, 1, 480, 1)));  // more threads for a line than a block has
    CHECK(!fits_depthwise_packed(image(5, 56, 5, 1, 36, 1)));
    CHECK(!fits_depthwise_packed(image(5, 56, 3, 2, 36, 1)));
    CHECK(!fits_depthwise_packed(image(5, 56, 3, 1, 36, 36)));
    ConvolutionSizes padded = image(5, 56, 3, 1, 36, 1);
    padded.pad[0] = 0;
    CHECK(!fits_depthwise_packed(padded));
  }

  TEST_CASE("lines cover every result and every tap, of any channels, and fit a block's shared memory") {
    for (int channels : {5, 12, 26, 72, 264, 960})
      for (int down : {1, 3, 5, 11, 31})
        for (int across : {1, 2, 5, 8, 21})
          for (int size : {1, 3, 7, 28, 57, 499}) {
            ConvolutionSizes c = image(3, size, 1, 1, channels, 1);
            c.kernel[0] = down, c.kernel[1] = across;
            for (int d = 0; d < 2; ++d) c.pad[d] = c.kernel[d] / 2, c.y[d] = size + 2 * c.pad[d] - c.kernel[d] + 1;
            if (c.y[0] < 1 || c.y[1] < 1) continue;
            INFO(channels, " channels, ", down, " x ", across, " taps, ", size, " pixels");
            CHECK(fits_depthwise_lines(c));
            for (bool gradient : {false, true}) {
              const DepthwiseLines p(c, gradient);
              check_lanes(p, c);
              CHECK(p.strips * DepthwiseLines::strip >= p.out[p.along]);
              CHECK((p.strips - 1) * DepthwiseLines::strip < p.out[p.along]);
              CHECK(p.items == c.batch * p.strips * p.out[p.beside]);
              CHECK(p.block_strips * p.vector_threads <= DepthwiseLines::threads);
              CHECK(p.splits >= 1);
              CHECK((p.splits - 1) * p.block_strips < p.items);
              CHECK(p.weight_floats() * 4 <= 48 << 10);
            }
            const DepthwiseLineWeights w(c);
            check_lanes(w, c);
            CHECK(w.segments * w.segment >= c.y[w.along]);
            CHECK(w.tap_blocks * w.block_tap_rows >= w.tap_rows);
            CHECK(w.pixel_threads >= 1);
            CHECK(w.vector_threads * w.block_tap_rows * w.pixel_threads <= DepthwiseLineWeights::threads);
            CHECK(w.splits >= 1);
            CHECK((w.splits - 1) * w.pixel_threads < w.items);
            CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
          }
    CHECK(DepthwiseLines(image(128, 28, 5, 1, 72, 1), false).vector_threads == 18);  // no thread without channels
    CHECK(!fits_depthwise_lines(image(3, 9, 3, 2, 36, 1)));
    CHECK(!fits_depthwise_lines(image(3, 9, 3, 1, 36, 36)));
    ConvolutionSizes dilated = image(3, 9, 3, 1, 36, 1);
    dilated.dilation[1] = 2;
    CHECK(!fits_depthwise_lines(dilated));
  }

  TEST_CASE("windows of a stride of 2 cover every pixel of an input gradient") {
    for (int kernel : {3, 5})
      for (int size : {1, 7, 12, 29})
        for (int pad : {0, 1, 2, 5}) {
          ConvolutionSizes c = image(3, size, kernel, 2, 36, 1);
          for (int d = 0; d < 2; ++d) c.pad[d] = pad, c.y[d] = (size + 2 * pad - kernel) / 2 + 1;
          if (size + 2 * pad < kernel) continue;
          CHECK(fits_depthwise_windows(c));
          const DepthwiseWindows p(c, true), y(c, false);
          CHECK(y.first[0] == 0);
          CHECK(y.count[0] == c.y[0]);
          CHECK(2 * p.first[0] - pad <= 0);
          CHECK(2 * (p.first[0] + p.count[0]) - pad >= size);
          CHECK(p.rows * p.bands >= p.count[0]);
          CHECK(p.image_columns * DepthwiseWindows::across >= p.count[1]);
        }
    CHECK(!fits_depthwise_windows(image(3, 9, 3, 1, 36, 1)));
    CHECK(!fits_depthwise_windows(image(3, 9, 7, 2, 36, 1)));
    CHECK(!fits_depthwise_windows(image(3, 9, 3, 2, 37, 1)));
  }
}
