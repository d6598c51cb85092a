#include "runtime/kernels/plane_taps_conv.h"
#include "tests/support/kernel_candidates.h"

#include <doctest/doctest.h>

// Convolutions over volumes whose taps lie in planes, and products of many matrices by few rows: which calls our own
// kernels take, how their blocks divide the work, and how near predictions are to what an H200 measured.

using namespace plimsoll;
using namespace plimsoll::cuda;
using namespace plimsoll::testing;

namespace {

DeviceDescription h200() { return llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")); }

PlaneTaps square(int images, int side, int run, int kernel) {
  const int pad = kernel / 2;
  return {images, {side, side}, {side, side}, {pad, pad}, {kernel, kernel}, run};
}

// The kernels for a call, the one that planning takes first.
std::vector<KernelCandidate> kernels_for(llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands) {
  llvm::SmallVector<const Type*, 3> types;
  for (const Type& type : operands) types.push_back(&type);
  const OpCall call(get_op(op), attrs, types);
  return CudaCatalog(h200()).candidates(call.op, call, llvm::cantFail(infer(call)));
}

double us_of(llvm::ArrayRef<KernelCandidate> kernels, llvm::StringRef name) {
  const auto* const found = llvm::find_if(kernels, [&](const KernelCandidate& kernel) { return kernel.name == name; });
  return found == kernels.end() ? 0 : found->predicted_us;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("slices and bands of taps fit the shared memory, and taps side by side lie in different banks") {
    for (int side : {1, 3, 8, 14, 16, 28, 56})
      for (int run : {16, 48, 64, 128})
        for (int kernel : {1, 3, 5, 7, 9}) {
          const PlaneTaps p = square(4, side, run, kernel);
          CAPTURE(side);
          CAPTURE(run);
          CAPTURE(kernel);
          REQUIRE(takes_plane_taps(p));
          CHECK(p.run % p.slice() == 0);
          CHECK(p.slice_bytes() <= PlaneTaps::max_shared_bytes);
          CHECK(p.weight_bytes() <= PlaneTaps::max_shared_bytes);
          CHECK(p.slice_pitch() >= side + kernel - 1);
          CHECK(p.slice_pitch() % 8 == kernel % 8);
          CHECK(p.tap_tiles() * 16 >= p.taps());
          CHECK(p.tap_rows() >= kernel);
        }
    CHECK(!takes_plane_taps(square(4, 16, 40, 9)));
    CHECK(!takes_plane_taps(square(4, 16, 64, 11)));
    CHECK(!takes_plane_taps(square(4, 112, 64, 9)));
  }

  TEST_CASE("convolutions whose taps lie in planes go before cuDNN, and both are predicted as they were measured") {
    struct Measured {
      int64_t images, side, run, kernel;
      double us[3], cudnn_us[3];  // by pass; 0: not measured
    };
    for (const Measured& m : {Measured{128, 16, 128, 9, {53.2, 63.3, 63.7}, {1733, 3038, 2786}},
                              {128, 16, 64, 9, {26.6, 44.4, 38.5}, {871, 1549, 1395}},
                              {128, 8, 128, 9, {15.9, 19.8, 25.6}, {424, 784, 556}},
                              {64, 28, 64, 7, {37.3, 0, 0}, {872, 0, 0}},
                              {128, 16, 128, 5, {38.8, 0, 0}, {716, 0, 0}}}) {
      const int64_t pad = m.kernel / 2;
      const Type x(DType::BF16, {m.images, m.side, m.side, m.run, 1}), w(DType::BF16, {16, m.kernel, m.kernel, 1, 1}),
          y(DType::BF16, {m.images, m.side, m.side, m.run, 16}), bias(DType::BF16, {16});
      Attrs attrs{{"channels_last", 1}, {"pads", Ints{pad, pad, 0, pad, pad, 0}}};
      const auto check = [&](size_t pass, llvm::ArrayRef<KernelCandidate> kernels) {
        CAPTURE(m.run);
        CAPTURE(m.kernel);
        CAPTURE(pass);
        CHECK(kernels.front().name == "plane_taps");
        if (m.us[pass] == 0) return;
        CHECK(us_of(kernels, "plane_taps") == doctest::Approx(m.us[pass]).epsilon(0.15));
        CHECK(us_of(kernels, "cudnn") == doctest::Approx(m.cudnn_us[pass]).epsilon(0.25));
      };
      check(0, kernels_for("conv", attrs, {x, w, bias}));
      attrs.set("shape", Ints(x.shape.begin(), x.shape.end()));
      check(1, kernels_for("conv_dx", attrs, {y, w}));
      attrs.set("shape", Ints(w.shape.begin(), w.shape.end()));
      attrs.set("dtype", DType::F32);
      check(2, kernels_for("conv_dw", attrs, {x, y}));
    }
    // Two channels, another number of them behind, strides, and several taps along the run.
    const auto takes = [](const Shape& x, const Shape& w, const Attrs& attrs) {
      return us_of(kernels_for("conv", attrs, {Type(DType::BF16, x), Type(DType::BF16, w)}), "plane_taps") > 0;
    };
    const Attrs last{{"channels_last", 1}};
    CHECK(takes({2, 9, 9, 32, 1}, {16, 3, 3, 1, 1}, last));
    CHECK(!takes({2, 9, 9, 32, 2}, {16, 3, 3, 1, 2}, last));
    CHECK(!takes({2, 9, 9, 32, 1}, {24, 3, 3, 1, 1}, last));
    CHECK(!takes({2, 9, 9, 32, 1}, {16, 3, 3, 2, 1}, last));
    CHECK(!takes({2, 9, 9, 32, 1}, {16, 3, 3, 1, 1}, {{"channels_last", 1}, {"strides", Ints{2, 1, 1}}}));
  }

  TEST_CASE("products of many matrices by few rows are predicted as they were measured") {
    const auto check = [](const Shape& a, const Shape& b, const Attrs& attrs, double us) {
      const auto kernels = kernels_for("matmul", attrs, {Type(DType::BF16, a), Type(DType::BF16, b)});
      CHECK(kernels.front().name == "few_rows");
      CHECK(kernels.front().predicted_us == doctest::Approx(us).epsilon(0.2));
    };
    check({128, 256, 4, 16}, {128, 256, 128, 16}, {{"transpose_b", 1}}, 61.2);
    check({128, 256, 4, 128}, {128, 256, 128, 16}, {}, 47.3);
    check({128, 256, 4, 128}, {128, 256, 4, 16}, {{"transpose_a", 1}}, 55.7);
    check({128, 256, 4, 16}, {128, 256, 64, 16}, {{"transpose_b", 1}}, 30);
    check({128, 256, 4, 64}, {128, 256, 64, 16}, {}, 24.8);
    check({128, 256, 4, 64}, {128, 256, 4, 16}, {{"transpose_a", 1}}, 33.6);
    check({128, 64, 4, 16}, {128, 64, 128, 16}, {{"transpose_b", 1}}, 14.4);
    check({128, 64, 4, 128}, {128, 64, 128, 16}, {}, 16.9);
    check({128, 64, 4, 128}, {128, 64, 4, 16}, {{"transpose_a", 1}}, 17.7);
  }

  TEST_CASE("batches of several strides are predicted as so many calls, and tiles of small matrices by their number") {
    const auto check = [](const Shape& a, const Shape& b, const Attrs& attrs, double us) {
      const auto kernels = kernels_for("matmul", attrs, {Type(DType::BF16, a), Type(DType::BF16, b)});
      CHECK(us_of(kernels, "cublaslt") == doctest::Approx(us).epsilon(0.35));
    };
    check({128, 4, 256, 1, 16}, {128, 1, 256, 16, 128}, {}, 1942);
    check({128, 4, 64, 1, 128}, {128, 1, 64, 16, 128}, {{"transpose_b", 1}}, 1727);
    check({128, 4, 256, 16}, {128, 1, 16, 128}, {}, 447);
    check({64, 6, 196, 9, 16}, {64, 6, 196, 9, 32}, {{"transpose_a", 1}}, 241);
    check({64, 6, 196, 9, 32}, {64, 6, 196, 16, 32}, {{"transpose_b", 1}}, 235);
    check({256, 8, 196, 16}, {256, 8, 16, 24}, {}, 40.6);
    check({256, 16, 49, 16}, {256, 16, 49, 24}, {{"transpose_a", 1}}, 21.6);
  }
}
