#include "kernels/cuda/conv/volume_sizes.h"
#include "runtime/kernels/folded_conv.h"
#include "tests/support/kernel_candidates.h"

#include <doctest/doctest.h>

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
