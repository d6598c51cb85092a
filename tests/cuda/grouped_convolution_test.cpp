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
