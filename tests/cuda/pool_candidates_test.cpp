#include "ir/support/strings.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that pool, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// Square windows over images [batch, size, size, channels] of bf16.
struct Windows {
  int64_t batch, size, channels, kernel, stride, pad;
  double us[2];  // of the op, and of its gradient

  Attrs attrs() const {
    return {{"channels_last", int64_t{1}},
            {"kernel", Ints{kernel, kernel}},
            {"strides", Ints{stride, stride}},
            {"pads", Ints{pad, pad, pad, pad}}};
  }
};

// Is each predicted within that share of what was measured?
void check_times(const Windows& s, llvm::StringRef op, llvm::StringRef gradient, double op_share,
                 double gradient_share) {
  const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
  INFO(s.size, " pixels, ", s.channels, " channels, ", s.kernel, " x ", s.kernel, ", stride ", s.stride);
  const auto predicted_us = [&](const OpCall& call) {
    return h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().predicted_us;
  };
  const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels});
  Attrs attrs = s.attrs();
  const Type* const of_y[] = {&x};
  const OpCall forward(get_op(op), attrs, of_y);
  CHECK(predicted_us(forward) == doctest::Approx(s.us[0]).epsilon(op_share));
  const Types y = llvm::cantFail(infer(forward));
  attrs.set("shape", Ints(x.shape.begin(), x.shape.end()));
  const Type* const of_x[] = {&y[0]};
  CHECK(predicted_us(OpCall(get_op(gradient), attrs, of_x)) == doctest::Approx(s.us[1]).epsilon(gradient_share));
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("average pools are predicted as an H200 measured them") {
    for (const Windows& s : {Windows{128, 35, 288, 3, 1, 1, {52.9, 72.8}},
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
                             {256, 28, 40, 2, 2, 0, {6.7, 8.6}}})
      check_times(s, "average_pool", "average_pool_grad", 0.2, 0.27);
  }

  TEST_CASE("patches are predicted as an H200 measured them") {
    for (const Windows& s : {Windows{64, 28, 192, 3, 2, 1, {22.9, 28.9}},
                             {64, 28, 64, 3, 1, 1, {21.5, 24.9}},
                             {64, 27, 44, 3, 2, 1, {9.0, 14.1}},
                             {64, 56, 64, 7, 4, 2, {47.4, 42.3}}})
      check_times(s, "unfold", "fold", 0.15, 0.15);
  }
}
