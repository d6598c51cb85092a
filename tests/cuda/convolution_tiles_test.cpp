#include "kernels/cuda/conv/depthwise_columns.h"
#include "kernels/cuda/conv/depthwise_pairs.h"
#include "kernels/cuda/conv/depthwise_sparse.h"
#include "kernels/cuda/conv/grouped_runs.h"
#include "kernels/cuda/conv/grouped_weight_runs.h"

#include <doctest/doctest.h>

#include <array>
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

// Pixel `column` of a row of an image, or -1.
int pixel_or_none(int column, int pixels) { return column >= 0 && column < pixels ? column : -1; }

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

// Columns of a row of planes hold what a spot's taps meet, as rows of the run do for rows: behind an image are the
// zeros before the next one.
template <typename Plan>
void check_run_of_images(const Plan& p, const ConvolutionSizes& c) {
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
  CHECK(p.splits <= p.steps);
  CHECK(p.stages >= p.span);  // or a step would wait for what never comes
  CHECK(p.shared_bytes() <= SparseTiles::most_shared_bytes);
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
    for (int64_t batch : {1, 5, 128})
      for (int size : {1, 7, 14, 28, 57, 75, 130})
        for (int kernel : {3, 5, 7})
          for (int stride : {1, 2})
            for (int pad : {0, 1, kernel / 2, kernel - 1, kernel + 2}) {
              if (size + 2 * pad < kernel || (kernel == 7 && stride == 2)) continue;
              ConvolutionSizes c = image(batch, size, kernel, stride, 72, 1);
              for (int d = 0; d < 2; ++d) c.pad[d] = pad, c.y[d] = (size + 2 * pad - kernel) / stride + 1;
              INFO(batch, " images of ", size, ", ", kernel, " taps, stride ", stride, ", pad ", pad);
              CHECK(fits_depthwise_pairs(c));
              for (bool gradient : {false, true}) check_pairs(DepthwisePairs(c, gradient), c);
            }
    const ConvolutionSizes small = image(128, 7, 7, 1, 768, 1);
    CHECK(DepthwisePairs(small, false).blocks() == 132);
    CHECK(!fits_depthwise_pairs(image(1, 9, 7, 2, 16, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 3, 16, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 1, 12, 1)));
    CHECK(!fits_depthwise_pairs(image(1, 9, 5, 1, 16, 16)));
  }

  TEST_CASE("tiles of sparse products hold every pixel that their taps meet, and fit a block's shared memory") {
    for (int64_t batch : {1, 5, 128})
      for (int size : {1, 7, 14, 28, 57, 75, 130})
        for (int kernel : {3, 5, 7})
          for (int stride : {1, 2})
            for (int pad : {0, 1, kernel / 2, kernel - 1, kernel + 2}) {
              if (size + 2 * pad < kernel || (kernel == 7 && stride == 2)) continue;
              ConvolutionSizes c = image(batch, size, kernel, stride, 72, 1);
              for (int d = 0; d < 2; ++d) c.pad[d] = pad, c.y[d] = (size + 2 * pad - kernel) / stride + 1;
              INFO(batch, " images of ", size, ", ", kernel, " taps, stride ", stride, ", pad ", pad);
              CHECK(fits_depthwise_sparse(c) == (stride == 1));
              CHECK(fits_depthwise_sparse_weights(c));
              check_sparse_weights(DepthwiseSparseWeights(c), c);
              if (stride != 1) continue;
              for (bool gradient : {false, true}) check_sparse(DepthwiseSparse(c, gradient), c);
            }
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
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 7, 2, 16, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 3, 16, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 1, 12, 1)));
    CHECK(!fits_depthwise_sparse_weights(image(1, 9, 5, 1, 16, 16)));
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
