#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that convolve each channel by itself, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("unit") {
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
}
