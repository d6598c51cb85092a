#include "ir/support/strings.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that convolve channels in groups, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// Of a convolution, as names_of lists them.
const std::string lean = "cudnn_lean reference ";

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("predictions know that cuDNN is slow where channels are in groups") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    auto predicted_us = [&](int64_t groups, int64_t kernel) {
      const Type x(DType::BF16, {64, 56, 56, 96}), w(DType::BF16, {96, kernel, kernel, 96 / groups});
      const std::vector<const Type*> types{&x, &w};
      const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", groups}};
      const OpCall call(get_op("conv"), attrs, types);
      for (const KernelCandidate& kernel :
           CudaCatalog(h200).candidates(get_op("conv"), call, llvm::cantFail(infer(call))))
        if (kernel.name == "cudnn") return kernel.predicted_us;
      return -1.0;
    };
    CHECK(predicted_us(1, 3) > 0);
    CHECK(predicted_us(96, 7) > 1.5 * predicted_us(96, 3));
    CHECK(predicted_us(4, 3) > predicted_us(96, 7));
  }

  TEST_CASE("predictions know that cuDNN is slower still with groups over volumes") {
    const CudaCatalog catalog(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const Type x(DType::BF16, {16, 16, 28, 28, 108}), w(DType::BF16, {108, 3, 3, 3, 1});
    const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", int64_t{108}}, {"pads", Ints{1, 1, 1, 1, 1, 1}}};
    const Type* operands[] = {&x, &w};
    const OpCall call(get_op("conv"), attrs, operands);
    const auto candidates = catalog.candidates(call.op, call, *infer(call));
    const auto cudnn = llvm::find_if(candidates, [](const KernelCandidate& each) { return each.name == "cudnn"; });
    REQUIRE(cudnn != candidates.end());
    CHECK(cudnn->predicted_us == doctest::Approx(1305).epsilon(0.1));
  }

  TEST_CASE("depthwise convolutions over volumes are our own, and predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, depth, size, channels, kernel, deep_stride, stride;
      double us[3];  // of y, dx and dw; 0 where it was not measured
    };
    for (const Shape& s : {Shape{16, 16, 112, 54, 3, 1, 2, {147.8, 121.7, 154.0}},
                           {16, 16, 56, 54, 3, 1, 1, {60.1, 60.3, 71.0}},
                           {16, 16, 56, 108, 3, 1, 2, {87.1, 63.7, 78.1}},
                           {16, 16, 28, 108, 3, 1, 1, {38.1, 37.4, 47.4}},
                           {16, 16, 28, 216, 3, 1, 2, {45.5, 71.8, 57.5}},
                           {16, 16, 14, 216, 3, 1, 1, {18.6, 18.6, 24.6}},
                           {16, 16, 14, 432, 3, 1, 2, {31.4, 35.4, 47.2}},
                           {16, 16, 7, 432, 3, 1, 1, {12.2, 12.1, 17.8}},
                           {4, 32, 32, 64, 5, 1, 1, {95.7, 95.6, 112.8}},
                           {16, 16, 28, 108, 3, 2, 1, {44.6, 50.9, 58.1}},
                           {8, 16, 56, 64, 3, 1, 1, {41.1, 41.0, 43.6}},
                           {16, 16, 28, 216, 3, 1, 1, {87.3, 87.5, 95.0}},
                           {1, 96, 96, 48, 3, 1, 1, {77.5, 77.8, 93.7}},
                           {2, 8, 112, 128, 3, 1, 1, {41.2, 41.3, 49.8}}}) {
      const int64_t pad = s.kernel / 2, down = (s.size - 1) / s.stride + 1, deep = (s.depth - 1) / s.deep_stride + 1;
      const Type x(DType::BF16, {s.batch, s.depth, s.size, s.size, s.channels}),
          w(DType::BF16, {s.channels, s.kernel, s.kernel, s.kernel, 1}),
          y(DType::BF16, {s.batch, deep, down, down, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.channels},
                        {"pads", Ints{pad, pad, pad, pad, pad, pad}},
                        {"strides", Ints{s.deep_stride, s.stride, s.stride}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::F32);
      const std::tuple<const char*, const Attrs*, const Type*, const Type*> calls[] = {
          {"conv", &attrs, &x, &w}, {"conv_dx", &of_x, &y, &w}, {"conv_dw", &of_w, &x, &y}};
      for (int pass = 0; pass < 3; ++pass) {
        const auto& [op, of_pass, first, second] = calls[pass];
        const Type* const operands[] = {first, second};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.size, " pixels and ", s.channels, " channels, stride ", s.stride);
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        // Lines of pixels that are no whole words of 16 bytes, but for y with strides and for strides in depth.
        const bool is_bands = s.channels % 8 != 0 && s.deep_stride == 1 && (s.stride == 1 || pass != 0);
        CHECK(llvm::StringRef(candidates.front().name).startswith("depthwise_volume"));
        if (is_bands) CHECK(candidates.front().name == "depthwise_volume_bands");
        const bool is_windows = s.channels % 8 == 0 && s.kernel == 3 && s.deep_stride == 1 && s.stride == 1;
        if (is_windows) CHECK(candidates.front().name == "depthwise_volume_windows");
        if (s.us[pass] > 0) CHECK(candidates.front().predicted_us == doctest::Approx(s.us[pass]).epsilon(0.15));
      }
    }
  }

  TEST_CASE("convolutions of one tap on pixels of no whole words are our own, and predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t size, from, to;
      double us[3];  // of y, dx and dw; 0 where others are
    };
    for (const Shape& s : {Shape{112, 24, 54, {138.1, 133.5, 120.2}},
                           {56, 54, 24, {36.3, 38.1, 37.1}},
                           {56, 24, 108, {65.0, 57.6, 57.6}},
                           {28, 108, 48, {25.3, 0, 26.3}},
                           {28, 48, 108, {0, 26.0, 27.3}}}) {
      const Type x(DType::BF16, {256, s.size, s.size, s.from}), w(DType::BF16, {s.to, 1, 1, s.from}),
          y(DType::BF16, {256, s.size, s.size, s.to});
      const Attrs attrs{{"channels_last", int64_t{1}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::F32);
      const std::tuple<const char*, const Attrs*, const Type*, const Type*> calls[] = {
          {"conv", &attrs, &x, &w}, {"conv_dx", &of_x, &y, &w}, {"conv_dw", &of_w, &x, &y}};
      for (int pass = 0; pass < 3; ++pass) {
        if (s.us[pass] == 0) continue;
        const auto& [op, of_pass, first, second] = calls[pass];
        const Type* const operands[] = {first, second};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.size, " pixels and ", s.from, " to ", s.to, " channels");
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        CHECK(candidates.front().name == "pointwise_chunks");
        CHECK(candidates.front().predicted_us == doctest::Approx(s.us[pass]).epsilon(0.15));
      }
    }
    const auto names = [&](int64_t pixels, int64_t from, int64_t to, const Attrs& attrs) {
      return names_of(h200, "conv", attrs,
                      {Type(DType::BF16, {pixels, 4, 4, from}), Type(DType::BF16, {to, 1, 1, from})});
    };
    const Attrs plain{{"channels_last", int64_t{1}}}, strided{{"channels_last", int64_t{1}}, {"strides", Ints{2, 2}}};
    CHECK(llvm::StringRef(names(9, 54, 24, plain)).contains("pointwise_chunks "));
    CHECK(!llvm::StringRef(names(9, 54, 24, strided)).contains("pointwise_chunks "));
    CHECK(!llvm::StringRef(names(9, 56, 24, plain)).contains("pointwise_chunks "));   // whole words
    CHECK(!llvm::StringRef(names(9, 27, 24, plain)).contains("pointwise_chunks "));   // an odd number
    CHECK(!llvm::StringRef(names(9, 216, 54, plain)).contains("pointwise_chunks "));  // more weights than registers
  }

  TEST_CASE("convolutions in groups go to our own kernels where these are predicted to be faster") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const CudaCatalog catalog(h200);
    auto first = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
      const std::string all = names_of(catalog, op, attrs, operands);
      CHECK(llvm::StringRef(all).contains("cudnn "));
      CHECK(ends_with(all, lean));
      return llvm::StringRef(all).split(' ').first.str();
    };
    auto attrs_of = [](int64_t groups, int64_t pad, int64_t stride) {
      return Attrs{{"channels_last", int64_t{1}},
                   {"groups", groups},
                   {"pads", Ints{pad, pad, pad, pad}},
                   {"strides", Ints{stride, stride}}};
    };
    const Type x(DType::BF16, {64, 28, 28, 96}), half(DType::BF16, {64, 14, 14, 96});
    const Type wide(DType::BF16, {96, 3, 3, 24}), dots(DType::BF16, {96, 7, 7, 1});
    CHECK(first("conv", attrs_of(4, 1, 1), {x, wide}) == "grouped_stationary");
    CHECK(first("conv", attrs_of(4, 1, 2), {x, wide}) == "grouped_stationary");
    const Type thirds(DType::BF16, {128, 56, 56, 72}), wide_thirds(DType::BF16, {72, 3, 3, 24});
    CHECK(first("conv", attrs_of(3, 1, 1), {thirds, wide_thirds}) == "grouped_bands");  // pixels share sectors
    CHECK(first("conv", attrs_of(96, 3, 1), {x, dots}) == "depthwise_sparse");
    CHECK(first("conv", attrs_of(96, 1, 2), {x, Type(DType::BF16, {96, 3, 3, 1})}) == "depthwise_windows");
    const Type large(DType::BF16, {128, 56, 56, 144}), large_dots(DType::BF16, {144, 5, 5, 1});
    CHECK(first("conv", attrs_of(144, 2, 2), {large, large_dots}) == "depthwise_pairs");
    CHECK(first("conv", attrs_of(96, 2, 1), {x, Type(DType::BF16, {96, 5, 5, 1})}) == "depthwise_sparse");
    const Type ragged(DType::BF16, {128, 28, 28, 240}), ragged_dots(DType::BF16, {240, 5, 5, 1});
    CHECK(first("conv", attrs_of(240, 2, 1), {ragged, ragged_dots}) == "depthwise_pairs");
    CHECK(first("conv", attrs_of(96, 1, 3), {x, Type(DType::BF16, {96, 3, 3, 1})}) == "depthwise");
    Attrs of_x = attrs_of(4, 1, 2), of_w = of_x;
    of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
    of_w.set("shape", Ints(wide.shape.begin(), wide.shape.end()));
    of_w.set("dtype", DType::F32);
    CHECK(first("conv_dx", of_x, {half, wide}) == "grouped_stationary");
    CHECK(first("conv_dw", of_w, {x, half}) == "grouped_stationary");
    const Type odd(DType::BF16, {64, 28, 28, 36}), odd_w(DType::BF16, {36, 3, 3, 12});
    CHECK(first("conv", attrs_of(3, 1, 1), {odd, odd_w}) == "cudnn");
    const Type long_taps(DType::BF16, {96, 5, 5, 24}), many(DType::BF16, {96, 3, 3, 48});
    CHECK(first("conv", attrs_of(4, 2, 1), {x, long_taps}) == "grouped_runs");
    CHECK(first("conv", attrs_of(2, 1, 1), {x, many}) == "grouped_stationary");
    const Type few(DType::BF16, {96, 3, 3, 4}), single(DType::BF16, {96, 3, 3, 2});
    CHECK(first("conv", attrs_of(24, 1, 1), {x, few}) == "grouped_lines");  // two by two
    CHECK(first("conv", attrs_of(48, 1, 2), {x, single}) == "grouped_lines");
    of_w.set("groups", int64_t{24});
    of_w.set("shape", Ints(few.shape.begin(), few.shape.end()));
    CHECK(first("conv_dw", of_w, {x, half}) == "grouped_lines");
    Attrs planes = attrs_of(4, 1, 1);
    planes.set("channels_last", int64_t{0});
    CHECK(first("conv", planes, {Type(DType::BF16, {64, 96, 28, 28}), Type(DType::BF16, {96, 24, 3, 3})}) == "cudnn");
    const Type exact(DType::F32, {64, 28, 28, 96}), exact_dots(DType::F32, {96, 7, 7, 1});
    CHECK(llvm::StringRef(names_of(catalog, "conv", attrs_of(96, 3, 1), {exact, exact_dots})).contains("depthwise "));
  }

  TEST_CASE("depthwise convolutions without strides are predicted as an H200 measured them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    constexpr llvm::StringLiteral names[] = {"depthwise_mma", "depthwise_sparse", "depthwise_pairs",
                                             "depthwise_columns"};
    struct Shape {
      int64_t size, channels, kernel;
      double us[3][2];     // of y, dx and dw by bands and by sparse products
      double pairs;        // of y and dx
      double columns = 0;  // of dw
    };
    for (const Shape& s : {Shape{112, 32, 3, {{79, 60.4}, {79, 60.5}, {109, 64.5}}, 89.8, 58.1},
                           {56, 144, 3, {{137, 84}, {136, 85.5}, {151, 84.7}}, 72.8, 71},
                           {28, 240, 3, {{55, 37.1}, {55, 37.2}, {76, 40.5}}, 32.8, 33.5},
                           {14, 480, 3, {{30, 18.7}, {30, 18.6}, {42, 24.4}}, 19.5, 20.6},
                           {7, 960, 3, {{17.7, 11.6}, {17.7, 11.6}, {24, 17.9}}, 12.9, 14.8},
                           {28, 240, 5, {{63, 37.8}, {63, 37.9}, {77, 37.2}}, 33.9},
                           {14, 672, 5, {{40, 27.1}, {40, 26.8}, {64, 28}}, 26.2},
                           {7, 1152, 5, {{28, 16.1}, {27, 16.1}, {48, 21.9}}, 19.1},
                           {56, 96, 7, {{93, 52.3}, {92, 51.8}, {114, 52.3}}, 87},
                           {28, 192, 7, {{56, 30.7}, {55, 30.2}, {70, 31.9}}, 45},
                           {14, 384, 7, {{36, 19.9}, {35, 19.5}, {53, 20.4}}, 31.3},
                           {7, 768, 7, {{24, 13.7}, {24, 13.4}, {39, 18.8}}, 19.5}}) {
      const int64_t pad = s.kernel / 2;
      const Type x(DType::BF16, {128, s.size, s.size, s.channels}), w(DType::BF16, {s.channels, s.kernel, s.kernel, 1});
      const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", s.channels}, {"pads", Ints{pad, pad, pad, pad}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::F32);
      const std::tuple<const char*, const Attrs*, const Type*> calls[] = {
          {"conv", &attrs, &w}, {"conv_dx", &of_x, &w}, {"conv_dw", &of_w, &x}};
      for (int pass = 0; pass < 3; ++pass) {
        const auto& [op, of_pass, other] = calls[pass];
        const Type* const operands[] = {&x, other};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.size, " pixels and ", s.channels, " channels");
        const auto candidates = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)));
        const bool is_dw = pass == 2;
        const double us[] = {s.us[pass][0], s.us[pass][1], is_dw ? 0 : s.pairs, is_dw ? s.columns : 0};
        double least = us[0];
        for (double of_kernel : us)
          if (of_kernel > 0) least = std::min(least, of_kernel);
        const double tolerances[] = {0.21, 0.11, 0.17, 0.11};
        for (const KernelCandidate& kernel : candidates)
          for (int i = 0; i < 4; ++i)
            if (kernel.name == names[i]) {
              CHECK(kernel.predicted_us == doctest::Approx(us[i]).epsilon(tolerances[i]));
              if (kernel.name == candidates.front().name) CHECK(us[i] < 1.09 * least);
            }
      }
    }
  }

  TEST_CASE("depthwise weight gradients with a stride of 2 are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t size, channels, kernel;
      double us;
    };
    for (const Shape& s : {Shape{112, 96, 3, 96.2}, {56, 144, 5, 51.3}, {28, 240, 3, 26.1}, {14, 672, 5, 22.2}}) {
      const int64_t pad = s.kernel / 2;
      const Type x(DType::BF16, {128, s.size, s.size, s.channels}),
          dy(DType::BF16, {128, s.size / 2, s.size / 2, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.channels},
                        {"pads", Ints{pad, pad, pad, pad}},
                        {"strides", Ints{2, 2}},
                        {"shape", Ints{s.channels, s.kernel, s.kernel, 1}},
                        {"dtype", DType::F32}};
      const Type* const operands[] = {&x, &dy};
      const OpCall call(get_op("conv_dw"), attrs, operands);
      INFO(s.size, " pixels and ", s.channels, " channels");
      const KernelCandidate first = h200.candidates(call.op, call, llvm::cantFail(infer(call))).front();
      CHECK(first.name == "depthwise_sparse");
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.12));
    }
  }

  TEST_CASE("depthwise weight gradients by products that turn are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, channels, kernel;
      double us;
    };
    for (const Shape& s : {Shape{128, 14, 320, 7, 19.5},
                           {128, 14, 384, 7, 20.4},
                           {128, 14, 512, 7, 23.8},
                           {128, 14, 768, 7, 34.4},
                           {256, 14, 96, 7, 15.4},
                           {128, 14, 672, 5, 28},
                           {128, 28, 192, 7, 31.9},
                           {128, 56, 96, 7, 52.3}}) {
      const int64_t pad = s.kernel / 2;
      const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.channels},
                        {"pads", Ints{pad, pad, pad, pad}},
                        {"shape", Ints{s.channels, s.kernel, s.kernel, 1}},
                        {"dtype", DType::F32}};
      const Type* const operands[] = {&x, &x};
      const OpCall call(get_op("conv_dw"), attrs, operands);
      INFO(s.size, " pixels and ", s.channels, " channels");
      const KernelCandidate first = h200.candidates(call.op, call, llvm::cantFail(infer(call))).front();
      CHECK(first.name == "depthwise_sparse");
      CHECK(first.predicted_us == doctest::Approx(s.us).epsilon(0.1));
    }
  }

  TEST_CASE("depthwise convolutions by lines are predicted as an H200 measured them, and are far ahead of cuDNN") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    constexpr double tolerance = 0.2, cudnn_tolerance = 0.35;
    struct Shape {
      int64_t batch, size, channels, down, across;
      double us[3];     // of y, dx and dw
      double cudnn[3];  // of the same; 0 where it was not measured
    };
    for (const Shape& s : {Shape{128, 56, 12, 11, 1, {12.9, 12.5, 17.7}, {0, 141.7, 1897}},
                           {128, 56, 12, 1, 11, {15.4, 15.0, 18.9}, {0, 61.7, 2162}},
                           {128, 28, 24, 11, 1, {8.6, 8.3, 13.0}, {0, 77.4, 513.9}},
                           {128, 14, 48, 11, 1, {5.7, 5.4, 11.6}, {0, 46.1, 170.8}},
                           {128, 7, 96, 1, 11, {5.5, 5.3, 11.7}, {0, 14.6, 42.6}},
                           {256, 28, 72, 1, 5, {21.3, 21.1, 22.5}, {374.5, 109.2, 1297}},
                           {256, 28, 72, 5, 1, {21.5, 21.2, 22.4}, {389.9, 203.4, 1168}},
                           {256, 14, 120, 1, 5, {11.0, 10.8, 15.2}, {157.6, 49.8, 325.1}},
                           {256, 14, 240, 5, 1, {18.8, 18.4, 20.2}, {331.8, 168.9, 336.9}},
                           {256, 7, 672, 1, 5, {14.7, 14.4, 18.4}, {244.6, 68.2, 248}},
                           {256, 7, 184, 5, 1, {7.5, 6.9, 9.9}, {66.2, 42.6, 84.7}},
                           {128, 28, 64, 1, 21, {21.2, 20.7, 25.1}, {}},
                           {128, 56, 96, 21, 1, {97.7, 96.8, 100.1}, {}},
                           {128, 56, 96, 1, 7, {53.0, 52.4, 49.3}, {}},
                           {128, 56, 26, 1, 5, {19.2, 18.7, 22.2}, {}},
                           {128, 28, 25, 5, 1, {8.8, 8.6, 13.0}, {}},
                           {64, 112, 64, 11, 1, {84.2, 84.0, 80.4}, {}},
                           {128, 56, 96, 3, 5, {78.2, 77.7, 87.2}, {}},
                           {256, 56, 36, 3, 3, {48.6, 48.6, 80.8}, {55.4, 95.4, 110.6}},
                           {256, 28, 60, 3, 3, {24.2, 23.9, 41.5}, {}},
                           {256, 14, 100, 3, 3, {13.4, 13.1, 23.5}, {}},
                           {128, 28, 60, 7, 7, {44.0, 43.8, 43.4}, {}}}) {
      const int64_t y = s.down / 2, x = s.across / 2;
      const Type image(DType::BF16, {s.batch, s.size, s.size, s.channels}),
          w(DType::BF16, {s.channels, s.down, s.across, 1});
      const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", s.channels}, {"pads", Ints{y, x, y, x}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(image.shape.begin(), image.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::F32);
      const std::tuple<const char*, const Attrs*, const Type*> calls[] = {
          {"conv", &attrs, &w}, {"conv_dx", &of_x, &w}, {"conv_dw", &of_w, &image}};
      for (int pass = 0; pass < 3; ++pass) {
        const auto& [op, of_pass, other] = calls[pass];
        const Type* const operands[] = {&image, other};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.size, " pixels, ", s.channels, " channels, ", s.down, " x ", s.across, " taps");
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        // Whole images, and weight gradients of squares, have kernels of their own.
        const bool is_whole = s.size <= 8 && s.channels % 8 == 0, is_square = s.down == 3 && s.across == 3;
        const llvm::StringRef first = candidates.front().name;
        if (is_square && pass == 2)
          CHECK((first == "depthwise_columns" || first == "depthwise_packed"));
        else
          CHECK(first == (is_whole ? "depthwise_images" : "depthwise_lines"));
        for (const KernelCandidate& kernel : candidates)
          if (kernel.name == "depthwise_lines")
            CHECK(kernel.predicted_us == doctest::Approx(s.us[pass]).epsilon(tolerance));
          else if (kernel.name == "cudnn" && s.cudnn[pass] > 0 && s.down != s.across)
            CHECK(kernel.predicted_us == doctest::Approx(s.cudnn[pass]).epsilon(cudnn_tolerance));
      }
    }
    // A line whose channels are last, and its bias.
    const Type line(DType::BF16, {8, 499, 512}), taps(DType::BF16, {512, 31, 1}), bias(DType::BF16, {512});
    const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", int64_t{512}}, {"pads", Ints{15, 15}}};
    const Type* const operands[] = {&line, &taps, &bias};
    const OpCall call(get_op("conv"), attrs, operands);
    CHECK(h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().name == "depthwise_lines");
  }

  TEST_CASE("depthwise convolutions of whole small images are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    constexpr double tolerance = 0.19;
    struct Shape {
      int64_t batch, size, channels, down, across;
      double us[3];     // of y, dx and dw; 0 where it was not measured
      double cudnn[3];  // of the same
    };
    for (const Shape& s :
         {Shape{128, 7, 768, 7, 7, {7.8, 7.5, 12.6}, {}}, {64, 7, 768, 7, 7, {6.4, 0, 9.3}, {}},
          {256, 7, 768, 7, 7, {12.1, 0, 17.2}, {}},       {512, 7, 768, 7, 7, {23.4, 0, 27.4}, {}},
          {128, 7, 2048, 7, 7, {15.6, 0, 18.3}, {}},      {128, 7, 512, 7, 7, {7.0, 0, 8.8}, {}},
          {128, 7, 1152, 5, 5, {9.9, 9.8, 13.8}, {}},     {256, 7, 1152, 5, 5, {17.2, 0, 21.9}, {}},
          {64, 4, 384, 5, 5, {4.0, 0, 5.5}, {}},          {256, 6, 448, 5, 5, {7.9, 0, 11.3}, {}},
          {128, 7, 960, 3, 3, {9.4, 9.2, 11.3}, {}},      {128, 7, 1024, 3, 3, {9.9, 0, 11.9}, {}},
          {128, 7, 320, 3, 3, {6.1, 0, 8.2}, {}},         {32, 7, 4800, 3, 3, {14.8, 0, 16.4}, {}},
          {256, 8, 168, 7, 7, {7.8, 7.2, 12.0}, {}},      {256, 8, 168, 9, 9, {8.1, 7.8, 12.4}, {275.2, 212.6, 895.1}},
          {128, 8, 304, 9, 9, {7.3, 0, 10.4}, {}},        {64, 8, 256, 9, 9, {5.1, 0, 7.3}, {}},
          {256, 7, 672, 1, 5, {10.9, 0, 14.9}, {}},       {128, 7, 96, 1, 11, {3.7, 3.6, 0}, {}}}) {
      const int64_t y = s.down / 2, x = s.across / 2;
      const Type image(DType::BF16, {s.batch, s.size, s.size, s.channels}),
          w(DType::BF16, {s.channels, s.down, s.across, 1});
      const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", s.channels}, {"pads", Ints{y, x, y, x}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(image.shape.begin(), image.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::F32);
      const std::tuple<const char*, const Attrs*, const Type*> calls[] = {
          {"conv", &attrs, &w}, {"conv_dx", &of_x, &w}, {"conv_dw", &of_w, &image}};
      for (int pass = 0; pass < 3; ++pass) {
        const auto& [op, of_pass, other] = calls[pass];
        const Type* const operands[] = {&image, other};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.batch, " x ", s.size, " pixels, ", s.channels, " channels, ", s.down, " x ",
             s.across, " taps");
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        CHECK(candidates.front().name == "depthwise_images");
        if (s.us[pass] > 0) CHECK(candidates.front().predicted_us == doctest::Approx(s.us[pass]).epsilon(tolerance));
        for (const KernelCandidate& kernel : candidates)
          if (kernel.name == "cudnn" && s.cudnn[pass] > 0)
            CHECK(kernel.predicted_us == doctest::Approx(s.cudnn[pass]).epsilon(tolerance));
      }
    }
  }

  TEST_CASE("weight gradients by columns and by lines in memory are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, channels;
      double columns, packed;  // us
    };
    for (const Shape& s : {Shape{256, 28, 60, 20.6, 20.9},
                           {256, 14, 100, 15.7, 13.9},
                           {256, 16, 30, 12.1, 9.3},
                           {256, 56, 36, 61.8, 38.3},
                           {256, 64, 24, 57.1, 34.7},
                           {256, 32, 24, 18.4, 15.4},
                           {256, 56, 48, 54.6, 49},
                           {128, 56, 64, 32.1, 38.6},
                           {128, 28, 64, 14.6, 16.4},
                           {256, 28, 96, 26.5, 31.3},
                           {128, 14, 128, 12, 12.7},
                           {128, 64, 48, 55.3, 36.1},
                           {128, 112, 32, 55.7, 66.5},
                           {256, 8, 42, 11.5, 6},
                           {128, 28, 120, 22.8, 22.8}}) {
      const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.channels},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"shape", Ints{s.channels, 3, 3, 1}},
                        {"dtype", DType::F32}};
      const Type* const operands[] = {&x, &x};
      const OpCall call(get_op("conv_dw"), attrs, operands);
      INFO(s.size, " pixels and ", s.channels, " channels");
      const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
      constexpr double tolerance = 0.17, most_lost = 1.06;
      const KernelCandidate& first = candidates.front();
      CHECK((first.name == "depthwise_packed" || first.name == "depthwise_columns"));
      const double us = first.name == "depthwise_packed" ? s.packed : s.columns;
      CHECK(first.predicted_us == doctest::Approx(us).epsilon(tolerance));
      CHECK(us <= most_lost * std::min(s.packed, s.columns));
      for (const KernelCandidate& kernel : candidates)
        if (kernel.name == "depthwise_packed")
          CHECK(kernel.predicted_us == doctest::Approx(s.packed).epsilon(tolerance));
    }
  }

  TEST_CASE("convolutions of groups by stationary weights are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    constexpr double tolerance = 0.17;
    struct Shape {
      int64_t batch, size, groups, channels, stride;
      double us[3];      // of y, dx and dw
      double before[3];  // by the quickest other kernel
    };
    for (const Shape& s : {Shape{128, 28, 9, 24, 1, {51.4, 52.2, 45.7}, {35.1, 35.1, 44.3}},
                           {128, 14, 24, 24, 1, {25.3, 25.5, 25.2}, {33.5, 32.7, 38.8}},
                           {128, 56, 8, 24, 1, {107, 106.4, 106.4}, {146.1, 138.2, 148.7}},
                           {128, 28, 16, 24, 1, {62.1, 62, 59.7}, {78.8, 74.8, 81.6}},
                           {64, 28, 32, 8, 1, {20.8, 21.2, 23.3}, {23.3, 24, 26.6}},
                           {128, 56, 16, 8, 1, {63.2, 63.5, 67.7}, {72.9, 72.4, 82.5}},
                           {128, 28, 16, 16, 1, {35.1, 34.9, 40.5}, {46.4, 44.4, 44.8}},
                           {128, 14, 32, 16, 1, {18.3, 18.2, 22.8}, {26.6, 26.6, 29.7}},
                           {128, 56, 4, 32, 1, {65.6, 65.5, 69.4}, {130.8, 112.3, 124}},
                           {128, 28, 8, 32, 1, {35.7, 35.5, 42.1}, {73.1, 60.3, 69.8}},
                           {128, 14, 16, 32, 1, {19.1, 19, 25.1}, {47, 40.7, 43.8}},
                           {128, 7, 32, 32, 1, {13.5, 13.3, 17.3}, {27, 23.6, 31.1}},
                           {64, 112, 2, 32, 1, {60.1, 60.4, 69.9}, {164.5, 152.1, 120.6}},
                           {128, 28, 5, 48, 1, {40.4, 40.5, 46.8}, {71, 60.6, 69.2}},
                           {128, 28, 5, 56, 1, {58.1, 58.3, 59.6}, {84.6, 76.3, 98.8}},
                           {64, 28, 4, 64, 1, {25.7, 25.6, 34.6}, {56, 46.5, 53.5}},
                           {128, 56, 2, 64, 1, {82.8, 82.4, 92.2}, {176.5, 149.8, 147.5}},
                           {64, 14, 16, 64, 1, {25.7, 25.2, 35.7}, {53.7, 48.2, 57.7}},
                           {128, 7, 32, 64, 1, {27.6, 27.4, 40.6}, {52.9, 46.2, 57.7}},
                           {32, 64, 8, 16, 1, {25.4, 25.2, 30.1}, {32.3, 31.2, 32.2}},
                           {128, 28, 24, 24, 2, {51.2, 51.5, 57.5}, {57, 51.6, 66.6}},
                           {128, 56, 32, 8, 2, {67.2, 76.9, 74.7}, {85.8, 80.8, 85.3}},
                           {128, 28, 32, 16, 2, {35.2, 37.8, 45.5}, {50.2, 42.3, 53.5}},
                           {128, 56, 4, 32, 2, {35.8, 43.3, 45.1}, {89.7, 62, 58.2}},
                           {128, 28, 16, 32, 2, {36.1, 38.5, 46.5}, {95.9, 69.5, 63.1}},
                           {128, 14, 32, 32, 2, {20.8, 24, 27.1}, {56.2, 41, 43.9}},
                           {128, 14, 63, 24, 2, {33.7, 36.9, 47}, {47, 39, 58}},
                           {128, 28, 10, 48, 2, {37.6, 36.6, 50.7}, {106.6, 60.2, 92.1}},
                           {128, 56, 2, 64, 2, {38.3, 44.7, 51.5}, {133.5, 60.1, 99.4}},
                           {128, 14, 32, 64, 2, {37, 42.9, 54.5}, {114.5, 70.7, 118.6}},
                           {256, 56, 1, 64, 1, {85.6, 86.3, 93.1}, {126.2, 137.2, 103.5}},
                           {64, 56, 1, 64, 1, {26.9, 26.9, 35.3}, {39.3, 44.7, 41.6}},
                           {8, 512, 1, 64, 1, {204.7, 206.2, 239.2}, {312.9, 351.6, 239.2}},
                           {64, 224, 1, 64, 1, {318.1, 325.6, 341.3}, {476.5, 534.8, 341.3}},
                           {64, 56, 1, 48, 1, {21.6, 21.6, 26.8}, {32.1, 32.1, 42.1}},
                           {64, 28, 1, 40, 1, {10, 10, 15.1}, {12.7, 13, 19.3}},
                           {64, 112, 1, 24, 1, {53.1, 52.2, 93.3}, {59.6, 59.5, 64.9}},
                           {128, 28, 1, 32, 1, {9.2, 9.2, 17}, {14.7, 15.3, 21.8}},
                           {128, 14, 1, 64, 1, {10, 9.9, 18.5}, {10.1, 9.3, 20.7}},
                           {128, 112, 1, 16, 1, {59.8, 59.9, 120.6}, {93.2, 93.6, 92.6}},
                           {128, 56, 1, 64, 2, {22.6, 26.6, 35.1}, {28.1, 36.5, 35.3}},
                           {64, 112, 1, 32, 2, {30.3, 34.4, 37.2}, {28.7, 36.5, 54.4}}}) {
      const int64_t channels = s.groups * s.channels;
      const Type x(DType::BF16, {s.batch, s.size, s.size, channels}), w(DType::BF16, {channels, 3, 3, s.channels}),
          y(DType::BF16, {s.batch, s.size / s.stride, s.size / s.stride, channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.groups},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"strides", Ints{s.stride, s.stride}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::BF16);
      struct {
        const char* op;
        const Attrs& attrs;
        const Type* const operands[2];
      } const calls[] = {{"conv", attrs, {&x, &w}}, {"conv_dx", of_x, {&y, &w}}, {"conv_dw", of_w, {&x, &y}}};
      for (int pass = 0; pass < 3; ++pass) {
        const OpCall call(get_op(calls[pass].op), calls[pass].attrs, calls[pass].operands);
        INFO(std::string(calls[pass].op), " of ", s.size, " pixels, ", s.groups, " groups of ", s.channels, ", stride ",
             s.stride);
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        // Packed lines have a test of their own.
        const auto first = llvm::find_if(candidates, [](const auto& kernel) { return kernel.name != "packed_lines"; });
        const double chosen = first->name == "grouped_stationary" ? s.us[pass] : s.before[pass];
        CHECK(chosen < 1.1 * std::min(s.us[pass], s.before[pass]));
        for (const KernelCandidate& kernel : candidates)
          if (kernel.name == "grouped_stationary")
            CHECK(kernel.predicted_us == doctest::Approx(s.us[pass]).epsilon(s.groups > 1 ? tolerance : 0.37));
      }
    }
  }

  TEST_CASE("convolutions of groups of 24 channels in bands are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, groups;
      double us[3];      // of y, dx and dw
      double others[3];  // by the quickest other kernel; 0 where it was not measured
    };
    for (const Shape& s : {Shape{128, 56, 3, {41.6, 41.5, 48.6}, {50.9, 48.8, 59.5}},
                           {64, 56, 3, {25.9, 25.9, 32.0}, {28.8, 27.4, 0}},
                           {32, 56, 3, {18.7, 18.8, 23.9}, {}},
                           {128, 64, 3, {53.0, 52.4, 57.5}, {64.9, 62.3, 74.6}},
                           {128, 48, 3, {33.0, 33.1, 39.3}, {39.8, 38.0, 49.2}},
                           {128, 28, 9, {35.1, 35.1, 44.3}, {39.9, 38.3, 45.5}},
                           {64, 28, 9, {20.0, 20.0, 28.2}, {22.7, 21.9, 0}},
                           {256, 28, 9, {68.3, 67.9, 77.0}, {78.4, 75.0, 0}},
                           {128, 28, 7, {34.7, 34.5, 45.2}, {40.7, 38.6, 38.7}},
                           {128, 28, 5, {24.4, 24.4, 33.3}, {28.8, 27.6, 31.7}},
                           {128, 28, 24, {81.5, 81.6, 108.8}, {93.6, 0, 87.5}},
                           {128, 56, 9, {142.1, 142.7, 119.4}, {154.9, 147.1, 160.1}},
                           {128, 32, 9, {43.0, 43.1, 49.9}, {50.5, 0, 56.5}},
                           {128, 20, 9, {22.3, 22.3, 31.0}, {22.3, 0, 25.3}},
                           {128, 56, 2, {37.4, 37.4, 46.5}, {33.6, 0, 36.5}},
                           {128, 14, 24, {33.4, 33.5, 45.5}, {25.3, 0, 26.4}},
                           {128, 14, 17, {26.8, 26.7, 36.7}, {21.2, 0, 23.8}},
                           {128, 7, 63, {39.9, 39.9, 53.6}, {20.3, 0, 23.0}}}) {
      const int64_t channels = s.groups * 24;
      const Type x(DType::BF16, {s.batch, s.size, s.size, channels}), w(DType::BF16, {channels, 3, 3, 24});
      const Attrs attrs{{"channels_last", int64_t{1}}, {"groups", s.groups}, {"pads", Ints{1, 1, 1, 1}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      of_w.set("dtype", DType::BF16);
      struct {
        const char* op;
        const Attrs& attrs;
        const Type* const operands[2];
      } const calls[] = {{"conv", attrs, {&x, &w}}, {"conv_dx", of_x, {&x, &w}}, {"conv_dw", of_w, {&x, &x}}};
      for (int pass = 0; pass < 3; ++pass) {
        const OpCall call(get_op(calls[pass].op), calls[pass].attrs, calls[pass].operands);
        INFO(std::string(calls[pass].op), " of ", s.batch, " x ", s.size, " pixels, ", s.groups, " groups");
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        const bool is_first = candidates.front().name == "grouped_bands";
        if (s.others[pass] > 0)
          CHECK((is_first ? s.us[pass] : s.others[pass]) < 1.15 * std::min(s.us[pass], s.others[pass]));
        const auto bands = llvm::find_if(candidates, [](const auto& kernel) { return kernel.name == "grouped_bands"; });
        REQUIRE(bands != candidates.end());
        CHECK(bands->predicted_us == doctest::Approx(s.us[pass]).epsilon(0.15));
      }
    }
  }

  TEST_CASE("convolutions of groups by lines are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, groups, channels, stride;
      double us[2];  // of y and dx, which lines have without strides alone
    };
    for (const Shape& s : {Shape{128, 112, 3, 24, 2, {90.2, 0}},
                           {128, 56, 9, 24, 2, {79.8, 0}},
                           {128, 28, 24, 24, 2, {55.9, 0}},
                           {128, 14, 63, 24, 2, {45.4, 0}},
                           {128, 56, 3, 24, 1, {50.6, 48.9}},
                           {64, 56, 3, 24, 1, {28.8, 27.4}},
                           {128, 28, 9, 24, 1, {39.9, 38.6}},
                           {256, 28, 9, 24, 1, {78.4, 75.0}},
                           {128, 28, 7, 24, 1, {40.7, 38.6}},
                           {128, 28, 5, 24, 1, {28.8, 27.6}},
                           {128, 56, 8, 16, 1, {78.9, 76.0}},
                           {128, 56, 32, 4, 1, {69.9, 70.3}},
                           {128, 28, 32, 8, 1, {41.2, 39.5}},
                           {128, 56, 32, 8, 2, {85.8, 0}}}) {
      const int64_t channels = s.groups * s.channels;
      const Type x(DType::BF16, {s.batch, s.size, s.size, channels}), w(DType::BF16, {channels, 3, 3, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.groups},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"strides", Ints{s.stride, s.stride}}};
      Attrs of_x = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      for (int pass = 0; pass < 2; ++pass) {
        if (s.us[pass] == 0) continue;
        const Type* const operands[] = {&x, &w};
        const OpCall call(get_op(pass == 0 ? "conv" : "conv_dx"), pass == 0 ? attrs : of_x, operands);
        INFO(call.op.name, " of ", s.size, " pixels and ", s.groups, " groups of ", s.channels);
        const auto candidates = h200.candidates(call.op, call, llvm::cantFail(infer(call)));
        const auto lines = llvm::find_if(candidates, [](const auto& kernel) { return kernel.name == "grouped_lines"; });
        REQUIRE(lines != candidates.end());
        CHECK(lines->predicted_us == doctest::Approx(s.us[pass]).epsilon(0.15));
      }
    }
  }

  TEST_CASE("input gradients of groups with a stride of 2 are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t size, groups, channels;
      double us;
    };
    for (const Shape& s : {Shape{112, 3, 24, 86.3},
                           {56, 9, 24, 67.9},
                           {28, 24, 24, 49.5},
                           {14, 63, 24, 38.5},
                           {56, 32, 8, 80.8},
                           {28, 32, 16, 42.5},
                           {14, 64, 16, 23.8},
                           {56, 64, 4, 80.9}}) {
      const int64_t channels = s.groups * s.channels;
      const Type dy(DType::BF16, {128, s.size / 2, s.size / 2, channels}), w(DType::BF16, {channels, 3, 3, s.channels});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.groups},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"strides", Ints{2, 2}},
                        {"shape", Ints{128, s.size, s.size, channels}}};
      const Type* const operands[] = {&dy, &w};
      const OpCall call(get_op("conv_dx"), attrs, operands);
      INFO(s.size, " pixels and ", s.groups, " groups of ", s.channels);
      bool is_there = false;
      for (const KernelCandidate& kernel : h200.candidates(call.op, call, llvm::cantFail(infer(call)))) {
        if (kernel.name != "grouped_squares") continue;
        is_there = true;
        CHECK(kernel.predicted_us == doctest::Approx(s.us).epsilon(0.09));
      }
      CHECK(is_there);
    }
  }

  TEST_CASE("cuDNN's time for channels in groups grows with their taps") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const Attrs attrs{
        {"channels_last", int64_t{1}}, {"groups", int64_t{16}}, {"pads", Ints{64, 64}}, {"shape", Ints{8, 499, 768}}};
    const Type dy(DType::BF16, {8, 500, 768}), w(DType::BF16, {768, 128, 48});
    const Type* types[] = {&dy, &w};
    const OpCall call(get_op("conv_dx"), attrs, types);
    double library_us = 0, own_us = 0;
    for (const KernelCandidate& candidate : CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)))) {
      if (candidate.name == "cudnn") library_us = candidate.predicted_us;
      if (candidate.name == "grouped_mma") own_us = candidate.predicted_us;
    }
    CHECK(own_us > 0);
    CHECK(library_us > 5 * own_us);
  }

  TEST_CASE("cuDNN is known to be hopeless at one channel to several a group") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, channels, to, taps, stride;
      double us[3];  // of y, dx and dw
    };
    for (const Shape& s : {Shape{256, 14, 128, 256, 3, 2, {220, 3936, 27154}},
                           {256, 27, 64, 128, 3, 2, {363, 4549, 14696}},
                           {128, 64, 48, 96, 7, 2, {3592, 11163, 5323}},
                           {128, 32, 96, 192, 3, 2, {358, 5113, 21152}},
                           {128, 16, 192, 384, 3, 2, {262, 5294, 266}},
                           {128, 8, 384, 768, 3, 1, {320, 249, 408}}}) {
      constexpr double times = 2.1;
      const int64_t pad = s.taps / 2, out = (s.size + 2 * pad - s.taps) / s.stride + 1;
      const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels}), y(DType::BF16, {s.batch, out, out, s.to}),
          w(DType::BF16, {s.to, s.taps, s.taps, 1});
      const Attrs attrs{{"channels_last", int64_t{1}},
                        {"groups", s.channels},
                        {"strides", Ints{s.stride, s.stride}},
                        {"pads", Ints{pad, pad, pad, pad}}};
      Attrs of_x = attrs, of_w = attrs;
      of_x.set("shape", Ints(x.shape.begin(), x.shape.end()));
      of_w.set("shape", Ints(w.shape.begin(), w.shape.end()));
      const std::tuple<const char*, const Attrs*, const Type*, const Type*> calls[] = {
          {"conv", &attrs, &x, &w}, {"conv_dx", &of_x, &y, &w}, {"conv_dw", &of_w, &x, &y}};
      for (int pass = 0; pass < 3; ++pass) {
        const auto& [op, of_pass, first, second] = calls[pass];
        const Type* const operands[] = {first, second};
        const OpCall call(get_op(op), *of_pass, operands);
        INFO(std::string(op), " of ", s.size, " pixels, ", s.channels, " channels, ", s.taps, " taps");
        const double us = h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().predicted_us;
        CHECK(us > s.us[pass] / times);
        CHECK(us < s.us[pass] * times);
      }
    }
  }
}
