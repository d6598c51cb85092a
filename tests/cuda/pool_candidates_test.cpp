#include "ir/support/strings.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that pool, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("unit") {
  TEST_CASE("average pools are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t batch, size, channels, kernel, stride, pad;
      double us[2];  // of y and dx
    };
    for (const Shape& s : {Shape{128, 35, 288, 3, 1, 1, {52.9, 72.8}},
                           {128, 35, 192, 3, 1, 1, {36.4, 49.4}},
                           {128, 17, 768, 3, 1, 1, {37.6, 51.8}},
                           {128, 8, 2048, 3, 1, 1, {21.1, 26.4}},
                           {128, 56, 26, 3, 1, 1, {17.4, 24.0}},
                           {128, 35, 27, 3, 1, 1, {11.7, 15.8}},
                           {128, 56, 52, 3, 2, 1, {16.8, 19.0}},
                           {128, 28, 104, 3, 2, 1, {9.7, 8.8}},
                           {128, 14, 208, 3, 2, 1, {6.1, 5.3}},
                           {128, 112, 64, 2, 2, 0, {59.8, 67.2}},
                           {128, 56, 96, 2, 2, 0, {24.0, 25.9}},
                           {128, 28, 192, 2, 2, 0, {13.0, 13.8}},
                           {128, 14, 384, 2, 2, 0, {7.5, 7.3}},
                           {256, 28, 40, 2, 2, 0, {6.7, 8.6}}}) {
      const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels});
      Attrs attrs{{"channels_last", int64_t{1}},
                  {"kernel", Ints{s.kernel, s.kernel}},
                  {"strides", Ints{s.stride, s.stride}},
                  {"pads", Ints{s.pad, s.pad, s.pad, s.pad}}};
      INFO(s.size, " pixels, ", s.channels, " channels, ", s.kernel, " x ", s.kernel, ", stride ", s.stride);
      const Type* const of_y[] = {&x};
      const OpCall forward(get_op("average_pool"), attrs, of_y);
      const Types y = llvm::cantFail(infer(forward));
      CHECK(h200.candidates(forward.op, forward, y).front().predicted_us == doctest::Approx(s.us[0]).epsilon(0.2));
      attrs.set("shape", Ints(x.shape.begin(), x.shape.end()));
      const Type* const of_x[] = {&y[0]};
      const OpCall backward(get_op("average_pool_grad"), attrs, of_x);
      const double us = h200.candidates(backward.op, backward, llvm::cantFail(infer(backward))).front().predicted_us;
      CHECK(us == doctest::Approx(s.us[1]).epsilon(0.27));
    }
  }

  TEST_CASE("patches are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t size, channels, kernel, stride, pad;
      double us[2];  // of unfold and fold
    };
    for (const Shape& s : {Shape{28, 192, 3, 2, 1, {22.9, 28.9}},
                           {28, 64, 3, 1, 1, {21.5, 24.9}},
                           {27, 44, 3, 2, 1, {9.0, 14.1}},
                           {56, 64, 7, 4, 2, {47.4, 42.3}}}) {
      const Type x(DType::BF16, {64, s.size, s.size, s.channels});
      Attrs attrs{{"channels_last", int64_t{1}},
                  {"kernel", Ints{s.kernel, s.kernel}},
                  {"strides", Ints{s.stride, s.stride}},
                  {"pads", Ints{s.pad, s.pad, s.pad, s.pad}}};
      INFO(s.size, " pixels, ", s.channels, " channels, ", s.kernel, " x ", s.kernel, ", stride ", s.stride);
      const Type* const of_y[] = {&x};
      const OpCall unfold(get_op("unfold"), attrs, of_y);
      const Types y = llvm::cantFail(infer(unfold));
      CHECK(h200.candidates(unfold.op, unfold, y).front().predicted_us == doctest::Approx(s.us[0]).epsilon(0.15));
      attrs.set("shape", Ints(x.shape.begin(), x.shape.end()));
      const Type* const of_x[] = {&y[0]};
      const OpCall fold(get_op("fold"), attrs, of_x);
      const Types back = llvm::cantFail(infer(fold));
      CHECK(h200.candidates(fold.op, fold, back).front().predicted_us == doctest::Approx(s.us[1]).epsilon(0.15));
    }
  }
}
