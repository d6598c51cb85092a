#include "tests/support/kernel_candidates.h"

// What planning learns of the CUDA kernels that sample images at the places of a grid, with no device present.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

double predicted_us(const CudaCatalog& catalog, llvm::StringRef op, const Attrs& attrs,
                    llvm::ArrayRef<const Type*> types, llvm::StringRef kernel) {
  const OpCall call(get_op(op), attrs, types);
  const std::vector<KernelCandidate> found = catalog.candidates(call.op, call, llvm::cantFail(infer(call)));
  CHECK(found.front().name == kernel);
  return found.front().predicted_us;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("samples of images are predicted as an H200 measured them") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    struct Shape {
      int64_t images, size, channels, samples;
      DType dtype;
      double us[3];  // of y, of the image's gradient and of the grid's
    };
    // The image's gradients are sums of what its three kernels took, but for the first three, of a step of Mask2Former.
    for (const Shape& s : {Shape{64, 64, 32, 21504, DType::BF16, {68.8, 154.3, 94.2}},
                           {64, 32, 32, 21504, DType::BF16, {66.6, 138.2, 89.5}},
                           {64, 16, 32, 21504, DType::BF16, {65.8, 138.0, 89.0}},
                           {48, 40, 48, 6400, DType::BF16, {24.3, 61.1, 41.2}},
                           {32, 64, 6, 8192, DType::BF16, {9.7, 37.6, 14.4}},
                           {16, 32, 256, 4096, DType::BF16, {27.0, 46.4, 36.5}},
                           {4, 512, 32, 262144, DType::BF16, {64.5, 544.5, 81.5}},
                           {3, 256, 32, 200000, DType::F32, {52.6, 247.4, 67.0}},
                           {64, 224, 3, 50176, DType::F32, {86.6, 550.7, 148.9}},
                           {800, 128, 1, 12544, DType::BF16, {114.9, 1045.7, 134.3}}}) {
      INFO(s.images, " images of ", s.size, ", ", s.channels, " channels, ", s.samples, " samples");
      const Type x(s.dtype, {s.images, s.size, s.size, s.channels}), grid(DType::F32, {s.images, 1, s.samples, 2});
      const Type dy(s.dtype, {s.images, 1, s.samples, s.channels});
      CHECK(predicted_us(h200, "grid_sample", {}, {&x, &grid}, "runs") == doctest::Approx(s.us[0]).epsilon(0.15));
      const Attrs shape{{"shape", Ints(x.shape.begin(), x.shape.end())}};
      CHECK(predicted_us(h200, "grid_sample_dx", shape, {&grid, &dy}, "ordered") ==
            doctest::Approx(s.us[1]).epsilon(0.15));
      CHECK(predicted_us(h200, "grid_sample_dgrid", {}, {&x, &grid, &dy}, "runs") ==
            doctest::Approx(s.us[2]).epsilon(0.15));
    }
  }

  TEST_CASE("samples of f64 and of images with more cells than 31 bits number go to the host") {
    const CudaCatalog h200(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
    const Type grid(DType::F32, {1, 1, 4, 2});
    for (const Type& x : {Type(DType::F64, {1, 4, 4, 8}), Type(DType::BF16, {1, 65536, 65536, 1})}) {
      const Type* const types[] = {&x, &grid};
      const Attrs attrs;
      const OpCall call(get_op("grid_sample"), attrs, types);
      CHECK(h200.candidates(call.op, call, llvm::cantFail(infer(call))).front().name == "reference");
    }
  }
}
