#include "kernels/cuda/conv/volume_bands.h"
#include "kernels/cuda/conv/volume_sizes.h"
#include "kernels/cuda/conv/volume_windows.h"
#include "runtime/kernels/folded_conv.h"
#include "tests/support/kernel_candidates.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

// How convolutions over volumes divide their work, which kernels planning takes for them, and which of them are
// convolutions over images: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;
using namespace plimsoll::testing;

namespace {

DeviceDescription h200() {
  DeviceDescription device = any_device();
  device.compute_capability = 90;
  device.multiprocessors = 132;
  device.memory_gb_per_s = 4100;
  device.matmul_tflops = {{DType::BF16, 790}, {DType::F16, 790}};
  device.convolution_workspace_bytes = int64_t{256} << 20;
  return device;
}

VolumeSizes cube(int64_t batch, int depth, int down, int across, int from, int to) {
  return {batch, {depth, down, across}, {depth, down, across}, {1, 1, 1}, from, to};
}

DepthwiseVolumeSizes depthwise(int channels, const int (&size)[3], const int (&kernel)[3], int deep_stride, int stride,
                               int pad) {
  DepthwiseVolumeSizes c;
  c.batch = 2, c.channels = channels;
  for (int d = 0; d < 3; ++d) {
    c.x[d] = size[d], c.kernel[d] = kernel[d], c.stride[d] = d == 0 ? deep_stride : stride, c.pad[d] = pad;
    c.y[d] = (size[d] + 2 * pad - kernel[d]) / c.stride[d] + 1;
  }
  return c;
}

// Every result of a plane is in one tile of one rectangle, and every plane in one part.
void check_rectangles(const DepthwiseVolumePlan& p, const int (&made)[3], const int (&pad)[3], int max_threads) {
  CHECK(p.threads() <= max_threads);
  CHECK(p.vector_blocks * p.vector_threads >= p.vectors);
  CHECK((p.vector_blocks - 1) * p.vector_threads < p.vectors);
  CHECK(p.parts * p.part_planes >= made[0]);
  CHECK((p.parts - 1) * p.part_planes < made[0]);
  const int rectangles[] = {p.down, p.across}, tiles[] = {p.block_down, p.block_across};
  const int of_tile[] = {p.tile.made_down(), p.tile.made_across()};
  for (int d = 0; d < 2; ++d) {
    const int first = p.tile.steps == VolumeSteps::Half ? p.first_window[d] * p.tile.window() - pad[d + 1] : 0;
    CHECK(first <= 0);
    CHECK(first > -p.tile.window());
    CHECK(first + rectangles[d] * tiles[d] * of_tile[d] >= made[d + 1]);
    CHECK(first + (rectangles[d] - 1) * tiles[d] * of_tile[d] < made[d + 1]);
  }
}

// Every result of a plane is in one column, and every column in one block or shared by all.
void check_columns(const VolumeColumnPlan& p, int64_t batch, int down, int across, int planes) {
  CHECK(p.channel_blocks * p.block_channels >= p.channels);
  CHECK((p.channel_blocks - 1) * p.block_channels < p.channels);
  CHECK(p.across * p.width >= across);
  CHECK((p.across - 1) * p.width < across);
  CHECK(p.row_blocks * p.lines >= down);
  CHECK((p.row_blocks - 1) * p.lines < down);
  CHECK(p.columns() == batch * p.row_blocks * p.across);
  CHECK(p.splits >= 1);
  CHECK(p.splits <= p.whole_columns + p.divided_columns * planes);
  CHECK(p.splits * p.block_planes + p.longer_blocks == p.divided_columns * planes);
  CHECK(p.longer_blocks < p.splits);
}

// Every result of a column is in one window, with the pixels beside it or beyond it the edge of `pixels`.
void check_windows(const VolumeWindowPlan& p, int first, int pixels, int64_t shared_bytes) {
  std::vector<int> seen(p.width);
  for (int window = 0; window < p.windows; ++window)
    for (int place = 0; place < VolumeWindowPlan::side; ++place) {
      if (!p.has_result(window, place)) continue;
      const int column = p.column_of(window, place), pixel = p.first_pixel + window * VolumeWindowPlan::step + place;
      CHECK(pixel == column + first + 1);
      if (place == 0) CHECK(pixel <= 0);
      if (place == VolumeWindowPlan::side - 1) CHECK(pixel >= pixels - 1);
      ++seen[column];
    }
  CHECK(seen == std::vector<int>(p.width, 1));
  CHECK(p.box_pixels >= (p.windows - 1) * VolumeWindowPlan::step + VolumeWindowPlan::side);
  CHECK(p.box_pixels % 2 == 1);
  CHECK(p.windows <= VolumeWindowPlan::most_windows);
  CHECK(p.lines <= VolumeWindowPlan::side);
  CHECK(shared_bytes <= VolumeColumnPlan::most_shared_bytes);
}

void check_bands(const VolumeBands& p, const DepthwiseVolumeSizes& c) {
  check_columns(p, c.batch, p.out[1] - p.first_out[0], p.out[2], p.out[0]);
  CHECK(p.warps <= VolumeBands::most_warps);
  CHECK(p.warps * p.warp_pairs >= p.block_pairs());
  CHECK(p.products() * p.warp_pairs <= 16);
  CHECK(p.strips * VolumeBands::strip + p.first_out[1] >= p.width);
  CHECK(p.halves * VolumeBands::product_strips >= p.strips);
  CHECK(p.result_stages >= 2);
  CHECK(p.shared_bytes() <= VolumeColumnPlan::most_shared_bytes);
}

std::string first_of(llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
  const std::string names = names_of(CudaCatalog(h200()), op, attrs, operands);
  return names.substr(0, names.find(' '));
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("sweeps and sums over volumes fit the shared memory, and their blocks have all planes and boxes") {
    for (int depth : {1, 4, 19, 128})
      for (const auto& [down, across] : {std::pair(7, 9), {16, 16}, {100, 30}})
        for (int from : {8, 32, 48, 64, 136, 320})
          for (int to : {8, 32, 64, 200}) {
            const VolumeSizes c = cube(2, depth, down, across, from, to);
            INFO(depth, " x ", down, " x ", across, ", ", from, " to ", to);
            REQUIRE(takes_volumes(c));
            for (bool gradient : {false, true}) {
              const VolumeSweep s = choose_volume_sweep(c, gradient, 132);
              CHECK(s.shared_bytes() <= VolumeSweep::max_shared_bytes);
              CHECK(s.planes() >= 2);
              CHECK(s.weight_stages() >= VolumeSweep::min_streamed);
              CHECK(s.weight_stages() <= VolumeSweep::max_stages);
              CHECK((s.parts - 1) * s.part_planes() < depth);
              CHECK(s.parts * s.part_planes() >= depth);
              CHECK(s.channel_tiles() * s.slot >= s.out_channels());
              CHECK(s.chunks() * s.terms >= s.in_channels());
            }
            const VolumeSums s = choose_volume_sums(c, 132, int64_t{1} << 30);
            CHECK(VolumeSums::shared_bytes <= VolumeSums::max_shared_bytes);
            CHECK(s.parts >= 1);
            CHECK(s.parts <= s.boxes());
          }
  }

  TEST_CASE("few channels of volumes are our own, many of them cuDNN's, and strides as well") {
    const Attrs same{{"channels_last", int64_t{1}}, {"pads", Ints{1, 1, 1, 1, 1, 1}}};
    const Type x(DType::BF16, {2, 128, 128, 128, 32}), w(DType::BF16, {32, 3, 3, 3, 32});
    CHECK(first_of("conv", same, {x, w}) == "warpgroup_volumes");
    Attrs gradient = same;
    gradient.set("shape", Ints{32, 3, 3, 3, 32});
    CHECK(first_of("conv_dw", gradient, {x, x}) == "warpgroup_volumes");
    gradient.set("shape", Ints{2, 128, 128, 128, 32});
    CHECK(first_of("conv_dx", gradient, {x, w}) == "warpgroup_volumes");
    const Type deep(DType::BF16, {2, 32, 32, 32, 128}), deep_w(DType::BF16, {128, 3, 3, 3, 128});
    CHECK(first_of("conv", same, {deep, deep_w}) == "cudnn");
    Attrs strided = same;
    strided.set("strides", Ints{2, 2, 2});
    CHECK(first_of("conv", strided, {x, w}) == "cudnn");
  }

  TEST_CASE("blocks of depthwise volumes have every result once, of any channels, taps and strides") {
    for (int channels : {2, 5, 54, 132, 432})
      for (const auto& size : {std::array{1, 1, 1}, {5, 7, 9}, {16, 56, 57}, {64, 30, 200}})
        for (const auto& kernel : {std::array{3, 3, 3}, {5, 5, 5}, {2, 4, 3}, {7, 1, 5}})
          for (int deep_stride : {1, 2})
            for (int stride : {1, 2})
              for (int pad : {0, 1, 3}) {
                const DepthwiseVolumeSizes c = depthwise(channels, {size[0], size[1], size[2]},
                                                         {kernel[0], kernel[1], kernel[2]}, deep_stride, stride, pad);
                if (std::min({c.y[0], c.y[1], c.y[2]}) < 1) continue;
                INFO(channels, " channels, ", size[0], " planes of ", size[1], " x ", size[2], ", ", kernel[0],
                     " planes of taps, strides ", deep_stride, " and ", stride, ", pad ", pad);
                REQUIRE(fits_depthwise_volumes(c));
                const DepthwiseVolumes forward(c, false), gradient(c, true);
                check_rectangles(forward, c.y, c.pad, DepthwiseVolumes::max_threads);
                check_rectangles(gradient, c.x, c.pad, DepthwiseVolumes::max_threads);
                const DepthwiseVolumeWeights w(c);
                check_rectangles(w, c.y, c.pad, DepthwiseVolumeWeights::max_threads);
                CHECK(w.keeps_planes == (w.depth_blocks == 1 && kernel[0] != 1));
                CHECK(w.splits >= 1);
                CHECK((w.splits - 1) * divide_up(w.rectangles, w.splits) < w.rectangles);
                CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
              }
  }

  TEST_CASE("bands over volumes fit the shared memory, and their columns have every result and every plane once") {
    for (int channels : {2, 54, 100, 108, 430})
      for (const auto& size : {std::array{1, 1, 1}, {5, 7, 9}, {16, 56, 56}, {3, 30, 112}, {40, 28, 28}, {2, 9, 200}})
        for (int stride : {1, 2})
          for (int pad : {0, 1, 2})
            for (int64_t batch : {1, 16}) {
              DepthwiseVolumeSizes c = depthwise(channels, {size[0], size[1], size[2]}, {3, 3, 3}, 1, stride, pad);
              if (std::min({c.y[0], c.y[1], c.y[2]}) < 1) continue;
              c.batch = batch;
              INFO(channels, " channels, ", size[0], " planes of ", size[1], " x ", size[2], ", stride ", stride,
                   ", pad ", pad);
              CHECK((stride == 1 || !fits_volume_bands(c, false)));
              for (bool gradient : {false, true})
                if (fits_volume_bands(c, gradient)) check_bands(VolumeBands(c, gradient), c);
              if (!fits_volume_band_weights(c)) continue;
              const VolumeBandWeights w(c);
              check_columns(w, c.batch, c.y[1], c.y[2], c.x[0]);
              CHECK(w.warps <= VolumeBandWeights::most_warps);
              CHECK(w.warps * VolumeBandWeights::warp_pairs >= w.block_pairs() * w.parts());
              CHECK(w.column_products * VolumeBandWeights::product_pixels >= w.width);
              CHECK(w.dy_stages >= VolumeBandWeights::few_dy_stages);
              CHECK(w.shared_bytes() <= VolumeColumnPlan::most_shared_bytes);
              CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
            }
  }

  TEST_CASE("windows over volumes have every result of a line once, and fit the shared memory") {
    for (int channels : {8, 72, 216, 1000})
      for (const auto& size : {std::array{1, 1, 1}, {5, 7, 7}, {16, 14, 14}, {3, 30, 8}, {40, 28, 9}, {2, 9, 200}})
        for (int pad : {0, 1, 2})
          for (int64_t batch : {1, 16}) {
            DepthwiseVolumeSizes c = depthwise(channels, {size[0], size[1], size[2]}, {3, 3, 3}, 1, 1, pad);
            if (std::min({c.y[0], c.y[1], c.y[2]}) < 1) continue;
            c.batch = batch;
            INFO(channels, " channels, ", size[0], " planes of ", size[1], " x ", size[2], ", pad ", pad);
            for (bool gradient : {false, true}) {
              REQUIRE(fits_volume_windows(c, gradient));
              const auto p = choose_volume_windows<VolumeWindows>(c, gradient);
              check_columns(p, c.batch, p.out[1], p.out[2], p.out[0]);
              check_windows(p, p.first[2], p.in[2], p.shared_bytes());
              CHECK(p.result_pixels >= p.width);
              if (p.across > 1) CHECK(p.result_pixels == p.width);  // what is stored besides is of a neighbour
            }
            REQUIRE(fits_volume_window_weights(c));
            const auto w = choose_volume_windows<VolumeWindowWeights>(c);
            check_columns(w, c.batch, c.y[1], c.y[2], c.x[0]);
            check_windows(w, -c.pad[2], c.x[2], w.shared_bytes());
            CHECK(w.dy_stages >= VolumeWindowWeights::few_dy_stages);
            CHECK(w.workspace_bytes(c) == w.splits * c.weights() * 4);
          }
  }

  TEST_CASE("bands take three taps each way of even channels, whole words of 16 bytes and a stride of gradients") {
    const auto takes = [](int channels, int across, int stride) {
      return depthwise(channels, {4, 20, across}, {3, 3, 3}, 1, stride, 1);
    };
    CHECK(fits_volume_bands(takes(54, 56, 1), false));
    CHECK(fits_volume_bands(takes(54, 112, 2), true));
    CHECK(fits_volume_band_weights(takes(54, 112, 2)));
    CHECK(!fits_volume_bands(takes(72, 56, 1), false));  // pixels of whole units
    CHECK(fits_volume_windows(takes(72, 21, 1), false));
    CHECK(fits_volume_window_weights(takes(72, 21, 1)));
    CHECK(!fits_volume_windows(takes(54, 56, 1), false));
    CHECK(!fits_volume_windows(takes(72, 112, 2), true));
    CHECK(!fits_volume_bands(takes(54, 21, 1), false));  // lines of 2268 bytes
    CHECK(!fits_volume_bands(takes(72, 112, 2), true));
    CHECK(!fits_volume_band_weights(takes(72, 112, 2)));
    CHECK(!fits_volume_bands(takes(54, 112, 2), false));
    CHECK(!fits_volume_bands(takes(27, 16, 1), false));
    CHECK(!fits_volume_bands(depthwise(54, {4, 20, 56}, {3, 3, 3}, 2, 1, 1), true));
    CHECK(!fits_volume_bands(depthwise(54, {4, 20, 56}, {5, 5, 5}, 1, 1, 2), false));
  }

  TEST_CASE("one channel a group of volumes is our own, in f32 too, but for dilations and strides across alone") {
    const auto of = [](DType dtype, const Ints& strides, const Ints& dilations, int64_t kernel) {
      const Type x(dtype, {2, 9, 20, 21, 54}), w(dtype, {54, kernel, kernel, kernel, 1});
      return first_of("conv",
                      {{"channels_last", int64_t{1}},
                       {"groups", int64_t{54}},
                       {"pads", Ints{2, 2, 2, 2, 2, 2}},
                       {"strides", strides},
                       {"dilations", dilations}},
                      {x, w});
    };
    const Ints one{1, 1, 1};
    CHECK(of(DType::BF16, one, one, 3) == "depthwise_volumes");
    CHECK(of(DType::F16, {1, 2, 2}, one, 3) == "depthwise_volumes");
    CHECK(of(DType::F32, {2, 2, 2}, one, 5) == "depthwise_volumes");
    CHECK(of(DType::BF16, {1, 1, 2}, one, 3) == "cudnn");
    CHECK(of(DType::BF16, one, {1, 2, 2}, 3) == "cudnn");
    CHECK(of(DType::BF16, one, one, 8) == "cudnn");
  }

  TEST_CASE("a convolution with one tap in depth, or with several there alone, is one over images") {
    Attrs attrs{{"channels_last", int64_t{1}}, {"pads", Ints{0, 1, 2, 0, 1, 0}}, {"strides", Ints{1, 2, 1}}};
    const Type x(DType::BF16, {2, 5, 8, 9, 16}), planes(DType::BF16, {16, 1, 3, 3, 16}),
        depths(DType::BF16, {16, 3, 1, 1, 16});
    const auto folded_of = [&](const Type& w) {
      const Type* types[] = {&x, &w};
      const OpCall call(get_op("conv"), attrs, types);
      return FoldedConvolution::of(call, llvm::cantFail(infer(call)));
    };
    std::optional<FoldedConvolution> folded = folded_of(planes);
    REQUIRE(folded);
    CHECK(folded->call()["x"].shape == Shape{10, 8, 9, 16});
    CHECK(folded->call()["w"].shape == Shape{16, 3, 3, 16});
    CHECK(folded->results()[0].shape == Shape{10, 4, 9, 16});
    CHECK(llvm::cantFail(infer(folded->call()))[0] == folded->results()[0]);
    CHECK(folded->attrs().get_ints("pads") == llvm::ArrayRef<int64_t>{1, 2, 1, 0});
    CHECK(folded->attrs().get_ints("strides") == llvm::ArrayRef<int64_t>{2, 1});

    CHECK(!folded_of(depths));  // strides and pads are not in depth alone
    attrs = {{"channels_last", int64_t{1}}, {"pads", Ints{1, 0, 0, 1, 0, 0}}, {"strides", Ints{2, 1, 1}}};
    folded = folded_of(depths);
    REQUIRE(folded);
    CHECK(folded->call()["x"].shape == Shape{2, 5, 72, 16});
    CHECK(folded->call()["w"].shape == Shape{16, 3, 1, 16});
    CHECK(folded->results()[0].shape == Shape{2, 3, 72, 16});
    CHECK(llvm::cantFail(infer(folded->call()))[0] == folded->results()[0]);
    attrs.set("channels_last", int64_t{0});
    const Type first(DType::BF16, {2, 16, 5, 8, 9}), first_w(DType::BF16, {16, 16, 3, 1, 1});
    const Type* types[] = {&first, &first_w};
    const OpCall call(get_op("conv"), attrs, types);
    CHECK(!FoldedConvolution::of(call, llvm::cantFail(infer(call))));
  }
}
