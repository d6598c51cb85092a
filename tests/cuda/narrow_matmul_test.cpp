#include "kernels/cuda/matmul/narrow_sizes.h"
#include "tests/support/kernel_candidates.h"

// Layers of few columns on one side: who takes them, and what that takes. No device is needed.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("cuda/narrow-matmul") {
  TEST_CASE("tiles begin at 16-byte borders and fit a block's shared memory") {
    for (int64_t inner = 1; inner <= 300; ++inner)
      for (int64_t columns : {1, 3, 16, 17, 256})
        for (int64_t element_bytes : {2, 4}) {
          const cuda::NarrowSizes n{1 << 20, inner, columns, element_bytes};
          if (!n.is_narrow()) continue;
          CHECK(n.product_tile_rows() % 8 == 0);
          CHECK(n.product_tile_rows() * n.product_tile_bytes_of_row() <= 48 << 10);
          CHECK(n.gradient_tile_rows() * n.gradient_tile_bytes_of_row() <= 48 << 10);
        }
    CHECK(!cuda::NarrowSizes{1000, 17, 17, 2}.is_narrow());
    CHECK(!cuda::NarrowSizes{1000, 257, 3, 2}.is_narrow());
    CHECK(cuda::NarrowSizes{1000, 256, 8, 2}.has_product());
    CHECK(!cuda::NarrowSizes{1000, 256, 9, 2}.has_product());
    CHECK(cuda::NarrowSizes{1000, 9, 256, 2}.has_product());
  }

  TEST_CASE("narrow layers are predicted as an H200 measured them") {
    struct Layer {
      int64_t rows, inner, columns;
      double own_us, library_us, own_gradient_us, library_gradient_us;  // 0: not measured
      DType dtype = DType::BF16;
    };
    for (const Layer& s : {Layer{4194304, 4, 4, 24.5, 420.9, 26.5, 131.7},
                           {4194304, 3, 4, 25.7, 454.9, 27.9, 304.5},
                           {1048576, 2, 64, 66.4, 100, 68.5, 103.4},
                           {1048576, 64, 2, 68, 107.9, 0, 0},
                           {262144, 3, 256, 59, 100, 66.4, 93.4},
                           {262144, 256, 3, 80.4, 128.7, 0, 0},
                           {262144, 256, 1, 68.6, 35.5, 59, 42.8},
                           {1048576, 5, 65, 129.1, 196.4, 132.3, 180},
                           {1048576, 65, 5, 151.8, 168.7, 0, 0},
                           {524288, 12, 100, 138.1, 73.6, 124.4, 61.1},
                           {524288, 100, 12, 154.2, 83.1, 0, 0},
                           {4194304, 4, 4, 39.6, 186.7, 39.5, 387.4, DType::F32},
                           {1048576, 2, 64, 98.7, 106.6, 79.6, 452.4, DType::F32},
                           {1048576, 64, 2, 83.8, 149.2, 0, 0, DType::F32}}) {
      CAPTURE(s.inner);
      CAPTURE(s.columns);
      CAPTURE(dtype_name(s.dtype).str());
      const auto check = [](llvm::ArrayRef<KernelCandidate> all, double own_us, double library_us) {
        CHECK(predicted_us(all, "narrow") == doctest::Approx(own_us).epsilon(0.16));
        CHECK(predicted_us(all, "cublaslt") == doctest::Approx(library_us).epsilon(0.16));
        CHECK(all.front().name == (own_us < library_us ? "narrow" : "cublaslt"));
      };
      const Type x(s.dtype, {s.rows, s.inner}), y(s.dtype, {s.rows, s.columns}), w(s.dtype, {s.inner, s.columns});
      check(candidates_on_h200("linear", {}, {x, w}), s.own_us, s.library_us);
      if (s.own_gradient_us > 0)
        check(candidates_on_h200("linear_dw", {{"dtype", DType::F32}}, {x, y}), s.own_gradient_us,
              s.library_gradient_us);
    }
  }

  TEST_CASE("wide rows, few rows and aligned layers stay with the library") {
    const auto first = [](int64_t rows, int64_t inner, int64_t columns) {
      return candidates_on_h200("linear", {}, {Type(DType::BF16, {rows, inner}), Type(DType::BF16, {inner, columns})})
          .front()
          .name;
    };
    CHECK(first(4917248, 4, 4) == "narrow");
    CHECK(first(4917248, 3, 4) == "narrow");
    CHECK(first(500, 4, 4) == "cublaslt");
    CHECK(first(100000, 300, 3) == "cublaslt");
    CHECK(first(524288, 16, 64) == "cublaslt");
    CHECK(first(524288, 64, 16) == "cublaslt");
  }
}
