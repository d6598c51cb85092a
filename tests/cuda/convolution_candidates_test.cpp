#include "ir/support/strings.h"
#include "runtime/kernels/space_to_batch.h"
#include "runtime/kernels/space_to_depth.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that convolve, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// Of a convolution, as names_of lists them.
const std::string cudnn_plans = "cudnn cudnn_2 cudnn_3 cudnn_4 cudnn_5 cudnn_6 ", lean = "cudnn_lean reference ";

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("what cuDNN may take follows from what a convolution reads and writes") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const auto workspace = [&](llvm::StringRef kernel, DType dtype, int64_t batch, int64_t channels = 32) {
      const Type x(dtype, {batch, 64, 64, channels}), w(dtype, {32, 3, 3, channels});
      const std::vector<const Type*> types{&x, &w};
      const Attrs attrs{{"channels_last", int64_t{1}}, {"pads", Ints{1, 1, 1, 1}}};
      const OpCall call(get_op("conv"), attrs, types);
      for (const KernelCandidate& each :
           CudaCatalog(h200).candidates(get_op("conv"), call, llvm::cantFail(infer(call))))
        if (each.name == kernel) return each.workspace_bytes;
      return int64_t{-1};
    };
    constexpr int64_t mib = 1 << 20, weight = 32 * 3 * 3 * 32 * 2;
    // x and y have 256 KiB a sample in 16 bits each.
    CHECK(workspace("cudnn", DType::BF16, 16) == 32 * mib + 8 * mib + weight);
    CHECK(workspace("cudnn", DType::F32, 16) == 32 * mib + 2 * (16 * mib + 2 * weight));
    CHECK(workspace("cudnn", DType::BF16, 1024) == 256 * mib);
    CHECK(workspace("cudnn_lean", DType::BF16, 16) == 8 * mib);
    CHECK(workspace("cudnn_lean", DType::F32, 16, 3) == 8 * mib);
    CHECK(workspace("cudnn_lean", DType::BF16, 16, 3) == -1);  // pixels of 6 bytes
    CHECK(workspace("cudnn", DType::BF16, 16, 3) > 32 * mib);
  }

  TEST_CASE("predictions know a bias that is added in a launch of its own, and tiles of 64 channels") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto us = [&](int64_t channels, bool has_bias) {
      const Type x(DType::BF16, {64, 56, 56, 128}), w(DType::BF16, {channels, 3, 3, 128}),
          bias(DType::BF16, {channels});
      std::vector<const Type*> types{&x, &w};
      if (has_bias) types.push_back(&bias);
      const Attrs attrs{{"channels_last", int64_t{1}}, {"pads", Ints{1, 1, 1, 1}}};
      const OpCall call(get_op("conv"), attrs, types);
      return h200.candidates(get_op("conv"), call, llvm::cantFail(infer(call))).front().predicted_us;
    };
    CHECK(us(64, true) > 1.1 * us(64, false));
    CHECK(us(32, false) > 0.8 * us(64, false));
    CHECK(us(128, false) > 1.3 * us(64, false));
  }

  TEST_CASE("on Hopper the sums of batch norms are made beside products of pixels, in 16 bits and without strides") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h200 = llvm::cantFail(devices.find("h200")), a100 = llvm::cantFail(devices.find("a100"));
    const Attrs last{{"channels_last", int64_t{1}}};
    struct Shape {
      int64_t size, from, to;
      double us;  // as measured
    };
    const auto first_of = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<const Type*> types) {
      const OpCall call(get_op(op), attrs, types);
      return CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))).front();
    };
    for (const Shape& s :
         {Shape{56, 64, 256, 157.9}, {56, 256, 64, 131.2}, {28, 128, 512, 86.1}, {14, 1024, 256, 55.7}}) {
      CAPTURE(s.from);
      const Type x(DType::BF16, {256, s.size, s.size, s.from}), w(DType::BF16, {s.to, 1, 1, s.from});
      const KernelCandidate first = first_of("conv_moments", last, {&x, &w});
      CHECK(first.name == "warpgroup_moments");
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.2));
    }
    for (const Shape& s : {Shape{56, 64, 256, 415.6}, {14, 512, 1024, 151.2}}) {
      CAPTURE(s.from);
      const Type dy(DType::BF16, {256, s.size, s.size, s.from}), w(DType::BF16, {s.from, 1, 1, s.to}),
          x(DType::BF16, {256, s.size, s.size, s.to}), channel(DType::F32, {s.to});
      const Attrs attrs{{"channels_last", int64_t{1}}, {"eps", 1e-5}, {"shape", Ints(x.shape.begin(), x.shape.end())}};
      const KernelCandidate first =
          first_of("conv_dx_sums", attrs, {&dy, &w, &x, &channel, &channel, &channel, nullptr, &x, &x});
      CHECK(first.name == "warpgroup_sums");
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.2));
    }
    const Type x(DType::F16, {8, 14, 14, 64}), w(DType::F16, {128, 1, 1, 64}), taps(DType::F16, {128, 3, 3, 64}),
        odd(DType::F16, {100, 1, 1, 64});
    Attrs strides = last;
    strides.set("strides", Ints{2, 2});
    const std::string library = "cudnn cudnn_2 cudnn_3 cudnn_4 cudnn_5 cudnn_6 reference ";
    CHECK(names_of(CudaCatalog(h200), "conv_moments", last, {x, w}) == "warpgroup_moments " + library);
    CHECK(names_of(CudaCatalog(h200), "conv_moments", strides, {x, w}) == library);
    CHECK(names_of(CudaCatalog(h200), "conv_moments", last, {x, taps}) == library);
    CHECK(names_of(CudaCatalog(h200), "conv_moments", last, {x, odd}) == library);
    CHECK(names_of(CudaCatalog(a100), "conv_moments", last, {x, w}) == library);
  }

  TEST_CASE("on Hopper space to batch is predicted to be quicker than cuDNN's own kernels for wide dilations") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto us = [&](llvm::StringRef op, int64_t dilation, llvm::StringRef kernel) {
      const Type x(DType::BF16, {48, 64, 64, 2048}), w(DType::BF16, {256, 3, 3, 2048}),
          y(DType::BF16, {48, 64, 64, 256});
      Attrs attrs{{"channels_last", int64_t{1}},
                  {"dilations", Ints{dilation, dilation}},
                  {"pads", Ints{dilation, dilation, dilation, dilation}}};
      const Type& shape = op == "conv_dx" ? x : w;
      if (op != "conv") attrs.set("shape", Ints(shape.shape.begin(), shape.shape.end()));
      if (op == "conv_dw") attrs.set("dtype", DType::F32);
      const std::vector<const Type*> types{op == "conv_dx" ? &y : &x, op == "conv_dw" ? &y : &w};
      const OpCall call(get_op(op), attrs, types);
      for (const KernelCandidate& candidate : h200.candidates(call.op, call, llvm::cantFail(infer(call))))
        if (candidate.name == kernel) return candidate.predicted_us;
      return 0.0;
    };
    for (const char* op : {"conv", "conv_dx", "conv_dw"}) {
      CAPTURE(op);
      CHECK(us(op, 12, "cudnn") > 1.4 * us(op, 8, "cudnn"));
      CHECK(us(op, 12, "cudnn_space_to_batch") == doctest::Approx(2800).epsilon(0.06));
      CHECK(us(op, 12, "cudnn_space_to_batch") < us(op, 12, "cudnn"));
    }
  }

  TEST_CASE("on Hopper convolutions with wide dilations go to our own kernels, others where these are quicker") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription h200 = llvm::cantFail(devices.find("h200")), a100 = llvm::cantFail(devices.find("a100"));
    struct Shape {
      llvm::StringRef op;
      int64_t batch, size, from, to, dilation;
      llvm::StringRef first;
      double us;  // of that one, as measured
    };
    const auto first_of = [](const DeviceDescription& device, const Shape& s) {
      const Type x(DType::BF16, {s.batch, s.size, s.size, s.from}), y(DType::BF16, {s.batch, s.size, s.size, s.to}),
          w(DType::BF16, {s.to, 3, 3, s.from});
      Attrs attrs{{"channels_last", int64_t{1}},
                  {"dilations", Ints{s.dilation, s.dilation}},
                  {"pads", Ints{s.dilation, s.dilation, s.dilation, s.dilation}}};
      const Type& shape = s.op == "conv_dx" ? x : w;
      if (s.op != "conv") attrs.set("shape", Ints(shape.shape.begin(), shape.shape.end()));
      if (s.op == "conv_dw") attrs.set("dtype", DType::F32);
      const std::vector<const Type*> types{s.op == "conv_dx" ? &y : &x, s.op == "conv_dw" ? &y : &w};
      const OpCall call(get_op(s.op), attrs, types);
      return CudaCatalog(device).candidates(call.op, call, llvm::cantFail(infer(call))).front();
    };
    for (const Shape& s : {Shape{"conv", 48, 64, 2048, 256, 12, "warpgroup_taps", 2127},
                           {"conv", 48, 64, 2048, 256, 36, "warpgroup_taps", 1137},
                           {"conv_dx", 48, 64, 2048, 256, 24, "warpgroup_taps", 1347},
                           {"conv_dw", 48, 64, 2048, 256, 12, "warpgroup_taps", 2080},
                           {"conv_dw", 48, 64, 2048, 256, 36, "warpgroup_taps", 1221},
                           {"conv_dw", 48, 64, 512, 512, 4, "warpgroup_taps", 1198},
                           {"conv_dw", 8, 512, 64, 64, 1, "warpgroup_taps", 232},
                           {"conv_dw", 256, 56, 64, 64, 1, "grouped_stationary", 93.1},
                           {"conv", 48, 64, 256, 256, 2, "cudnn", 295},
                           {"conv_dx", 48, 64, 256, 256, 1, "cudnn", 345},
                           {"conv_dw", 48, 64, 256, 256, 2, "cudnn", 297},
                           {"conv_dw", 256, 7, 512, 512, 1, "cudnn", 84},
                           {"conv_dw", 256, 28, 128, 128, 1, "cudnn", 96},
                           {"conv_dw", 128, 28, 128, 32, 1, "cudnn", 42}}) {
      INFO(s.op, " of ", s.from, " channels, dilation ", s.dilation);
      const KernelCandidate first = first_of(h200, s);
      CHECK(first.name == s.first);
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.45));
      CHECK(!starts_with(first_of(a100, s).name, "warpgroup"));
    }
  }

  TEST_CASE("cuDNN's other plans of a convolution stand behind its first choice") {
    const CudaCatalog catalog(any_device());
    const Type x(DType::BF16, {2, 16, 8, 8}), w(DType::BF16, {16, 16, 1, 1});
    const Attrs of_x{{"shape", x.shape}}, of_w{{"shape", w.shape}};
    for (const auto& [op, attrs, other] : {std::tuple<const char*, Attrs, Type>{"conv", {}, w},
                                           {"conv_dx", of_x, w},
                                           {"conv_dw", of_w, x},
                                           {"conv_transpose", {}, w}})
      CHECK(names_of(catalog, op, attrs, {x, other}) == cudnn_plans + lean);
  }

  TEST_CASE("a convolution of an image may go by space to depth, in 16 bits and with the channels last") {
    const CudaCatalog catalog(any_device());
    const Ints pads{3, 3, 3, 3}, strides{2, 2}, kernel{64, 7, 7, 3};
    const Attrs last{{"pads", pads}, {"strides", strides}, {"channels_last", int64_t{1}}};
    const Attrs gradient{
        {"pads", pads}, {"strides", strides}, {"channels_last", int64_t{1}}, {"shape", kernel}, {"dtype", DType::F32}};
    const Type x(DType::BF16, {2, 32, 32, 3}), w(DType::BF16, {64, 7, 7, 3}), y(DType::BF16, {2, 16, 16, 64});
    CHECK(names_of(catalog, "conv", last, {x, w}) ==
          "cudnn_space_to_depth cudnn_space_to_depth_2 cudnn_space_to_depth_3 " + cudnn_plans + "reference ");
    CHECK(names_of(catalog, "conv_dw", gradient, {x, y}) ==
          "cudnn_space_to_depth cudnn_space_to_depth_2 cudnn_space_to_depth_3 " + cudnn_plans + "reference ");
    const Type wide_x(DType::BF16, {2, 32, 32, 8}), wide_w(DType::BF16, {64, 7, 7, 8}),
        odd_w(DType::BF16, {21, 7, 7, 3}), dot(DType::BF16, {64, 1, 1, 3});
    CHECK(names_of(catalog, "conv", last, {wide_x, wide_w}) == cudnn_plans + lean);
    CHECK(names_of(catalog, "conv", last, {x, odd_w}) == cudnn_plans + "reference ");
    CHECK(names_of(catalog, "conv", last, {x, dot}) == cudnn_plans + "reference ");  // reads every fourth pixel
    CHECK(names_of(catalog, "conv", last, {Type(DType::F32, x.shape), Type(DType::F32, w.shape)}) == "cudnn " + lean);
  }

  TEST_CASE("on Hopper first convolutions go by products over runs of blocks, predicted as an H200 measured them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Shape {
      int64_t batch, taps, stride, to;
      double y_us, dw_us;
    };
    for (const Shape& s :
         {Shape{256, 7, 2, 64, 592, 267}, {64, 3, 2, 64, 102, 88}, {128, 3, 2, 32, 205, 158}, {64, 3, 1, 64, 845, 296}})
      for (bool gradient : {false, true}) {
        const int64_t pad = s.taps / 2, size = 224, made = size / s.stride;
        const Type x(DType::BF16, {s.batch, size, size, 3}), w(DType::BF16, {s.to, s.taps, s.taps, 3}),
            y(DType::BF16, {s.batch, made, made, s.to});
        Attrs attrs{
            {"channels_last", int64_t{1}}, {"pads", Ints{pad, pad, pad, pad}}, {"strides", Ints{s.stride, s.stride}}};
        if (gradient) attrs.set("shape", Ints(w.shape.begin(), w.shape.end()));
        const std::vector<const Type*> types{&x, gradient ? &y : &w};
        const OpCall call(get_op(gradient ? "conv_dw" : "conv"), attrs, types);
        INFO(s.taps, " x ", s.taps, " by ", s.to, ", stride ", s.stride, gradient ? ", dw" : "");
        const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))).front();
        CHECK(first.name == "warpgroup_space_to_depth");
        CHECK(first.predicted_us == doctest::Approx(gradient ? s.dw_us : s.y_us).epsilon(0.25));
      }
  }

  TEST_CASE("on Hopper channels that are no multiples of 64 are known to be slow in cuDNN, and go to our own kernels") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Shape {
      llvm::StringRef op;
      int64_t size, from, to, taps, stride;
      llvm::StringRef first;
      double library_us, own_us;  // as measured, of cuDNN and grouped_runs
    };
    for (const Shape& s : {Shape{"conv", 56, 18, 18, 3, 1, "packed_lines", 60.2, 25.3},
                           {"conv_dx", 56, 18, 18, 3, 1, "packed_lines", 59.9, 25.0},
                           {"conv_dw", 56, 18, 18, 3, 1, "packed_lines", 75.7, 33.8},
                           {"conv", 28, 36, 36, 3, 1, "packed_lines", 35.4, 14.4},
                           {"conv_dx", 28, 36, 36, 3, 1, "packed_lines", 42.7, 14.1},
                           {"conv_dw", 28, 36, 36, 3, 1, "packed_lines", 96.5, 17.5},
                           {"conv_dx", 14, 72, 72, 3, 1, "packed_lines", 12.9, 12.0},
                           {"conv_dw", 14, 72, 72, 3, 1, "packed_lines", 26.4, 17.2},
                           {"conv", 7, 144, 144, 3, 1, "cudnn", 13.3, 20.3},
                           {"conv_dw", 7, 144, 144, 3, 1, "cudnn", 9.7, 17.7},
                           {"conv", 28, 100, 100, 3, 1, "grouped_runs", 70.8, 65.4},
                           {"conv_dw", 28, 100, 100, 3, 1, "grouped_runs", 98.1, 49.2},
                           {"conv", 28, 27, 27, 3, 1, "grouped_runs", 25.0, 20.0},
                           {"conv", 56, 48, 48, 3, 1, "grouped_stationary", 43.9, 31.6},
                           {"conv", 112, 24, 24, 3, 1, "packed_lines", 118.2, 59.3},
                           {"conv_dw", 112, 24, 24, 3, 1, "grouped_runs", 126.7, 63.0},
                           {"conv", 28, 36, 72, 3, 2, "packed_lines", 22.0, 15.8},
                           {"conv_dx", 28, 36, 72, 3, 2, "grouped_runs", 28.2, 13.4},
                           {"conv_dw", 28, 36, 72, 3, 2, "grouped_runs", 52.5, 18.4},
                           {"conv", 14, 72, 36, 1, 1, "cudnn", 5.8, 5.8},
                           {"conv", 56, 64, 64, 3, 1, "grouped_stationary", 39.2, 46.8}}) {
      const int64_t pad = s.taps / 2, made = s.size / s.stride;
      const Type x(DType::BF16, {64, s.size, s.size, s.from}), w(DType::BF16, {s.to, s.taps, s.taps, s.from}),
          y(DType::BF16, {64, made, made, s.to});
      Attrs attrs{
          {"channels_last", int64_t{1}}, {"pads", Ints{pad, pad, pad, pad}}, {"strides", Ints{s.stride, s.stride}}};
      const Type& shape = s.op == "conv_dx" ? x : w;
      if (s.op != "conv") attrs.set("shape", Ints(shape.shape.begin(), shape.shape.end()));
      const std::vector<const Type*> types{s.op == "conv_dx" ? &y : &x, s.op == "conv_dw" ? &y : &w};
      const OpCall call(get_op(s.op), attrs, types);
      INFO(s.op, " of ", s.size, " pixels, ", s.from, " to ", s.to, " channels");
      const auto candidates = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)));
      CHECK(candidates.front().name == s.first);
      for (const KernelCandidate& kernel : candidates) {
        if (kernel.name == "grouped_runs") CHECK(kernel.predicted_us == doctest::Approx(s.own_us).epsilon(0.35));
        if (kernel.name == "cudnn") CHECK(kernel.predicted_us == doctest::Approx(s.library_us).epsilon(0.45));
      }
    }
  }

  TEST_CASE(
      "on Hopper input gradients along lines of odd channels are known to be slow in cuDNN, but with wide dilations") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const auto us = [&](int64_t dilation) {
      const Type dy(DType::BF16, {16, 15872, 96}), w(DType::BF16, {96, 7, 96});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"dilations", Ints{dilation}},
                        {"pads", Ints{3 * dilation, 3 * dilation}},
                        {"shape", Ints{16, 15872, 96}}};
      const OpCall call(get_op("conv_dx"), attrs, {&dy, &w});
      const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
      if (dilation < 9) CHECK(candidates.front().name == "grouped_runs");
      for (const KernelCandidate& kernel : candidates)
        if (kernel.name == "cudnn") return kernel.predicted_us;
      return 0.0;
    };
    CHECK(us(1) == doctest::Approx(332).epsilon(0.2));
    CHECK(us(3) == doctest::Approx(332).epsilon(0.2));
    CHECK(us(9) == doctest::Approx(125).epsilon(0.2));
  }

  TEST_CASE("space to depth leaves no strides and no pads: blocks of 2 x 2 pixels of 3 channels are pixels of 16") {
    const Attrs attrs{{"pads", Ints{3, 3, 3, 3}}, {"strides", Ints{2, 2}}, {"channels_last", int64_t{1}}};
    const SpaceToDepthConvolution stem(attrs, Type(DType::BF16, {256, 224, 224, 3}), {64, 7, 7, 3},
                                       {256, 112, 112, 64});
    CHECK(to_string(stem.x_type) == "bf16[256,115,115,16]");
    CHECK(to_string(stem.w_type) == "bf16[64,4,4,16]");
    CHECK(stem.bytes() == 256 * 115 * 115 * 16 * 2 + 64 * 4 * 4 * 16 * 2);
    const Attrs line{{"strides", Ints{5}}, {"channels_last", int64_t{1}}};
    const SpaceToDepthConvolution wave(line, Type(DType::F16, {4, 102, 1}), {8, 10, 1}, {4, 19, 8});
    CHECK(to_string(wave.x_type) == "f16[4,1,20,8]");
    CHECK(to_string(wave.w_type) == "f16[8,1,2,8]");
    CHECK(wave.x.read[1] == 100);  // the last two are in no window
  }

  TEST_CASE("a convolution with dilations that cuDNN has no kernels for may go by space to batch") {
    const CudaCatalog catalog(any_device());
    const Type x(DType::BF16, {48, 64, 64, 2048}), w(DType::BF16, {256, 3, 3, 2048}), y(DType::BF16, {48, 64, 64, 256});
    auto attrs_of = [](int64_t dilation, int64_t pad) {
      return Attrs{
          {"dilations", Ints{dilation, dilation}}, {"pads", Ints{pad, pad, pad, pad}}, {"channels_last", int64_t{1}}};
    };
    const std::string phases = "cudnn_space_to_batch cudnn_space_to_batch_2 cudnn_space_to_batch_3 ";
    Attrs of_x = attrs_of(12, 12), of_w = of_x, of_narrow_w = of_x;
    of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
    of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
    of_narrow_w = of_w;
    of_w.set("dtype", DType::F32);
    const std::string phases_first = phases + cudnn_plans + lean;
    CHECK(names_of(catalog, "conv", attrs_of(12, 12), {x, w}) == phases_first);
    CHECK(names_of(catalog, "conv_dx", of_x, {y, w}) == cudnn_plans + phases + lean);
    CHECK(names_of(catalog, "conv_dw", of_w, {x, y}) == cudnn_plans + phases + lean);
    CHECK(names_of(catalog, "conv_dw", of_narrow_w, {x, y}) == cudnn_plans + lean);  // chunks are summed in f32
    CHECK(names_of(catalog, "conv", attrs_of(8, 8), {x, w}) == cudnn_plans + lean);
    CHECK(names_of(catalog, "conv", attrs_of(11, 11), {x, w}) == phases_first);
    CHECK(names_of(catalog, "conv", attrs_of(12, 11), {x, w}) == cudnn_plans + lean);  // pads do not divide
  }

  TEST_CASE(
      "space to batch leaves a dilation of 8 or less and few empty pixels, and takes a chunk of the batch at a time") {
    auto split = [](int64_t dilation) {
      const Attrs attrs{{"dilations", Ints{dilation, dilation}},
                        {"pads", Ints{dilation, dilation, dilation, dilation}},
                        {"channels_last", int64_t{1}}};
      return *SpaceToBatchConvolution::of(attrs, Type(DType::BF16, {48, 64, 64, 2048}), {256, 3, 3, 2048},
                                          {48, 64, 64, 256});
    };
    const SpaceToBatchConvolution near = split(12), far = split(36);
    CHECK(near.runs == 4);  // 805 and 101 MB in all
    CHECK(to_string(near.x_type) == "bf16[48,32,32,2048]");
    CHECK(to_string(near.y_type) == "bf16[48,32,32,256]");
    CHECK(near.dilations[0] == 6);
    CHECK(near.pads_end[0] == 6);
    CHECK(far.runs == 4);
    CHECK(to_string(far.x_type) == "bf16[432,11,11,2048]");  // 66 of 6 x 11 pixels, two of them empty
    CHECK(far.dilations[1] == 6);
    CHECK(split(24).x.step[0] == 4);  // 3 would do for the dilation, and leave 66 pixels of 64
  }
}
