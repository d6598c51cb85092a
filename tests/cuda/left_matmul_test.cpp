#include "runtime/kernels/left_matmul.h"
#include "tests/support/kernel_candidates.h"

// What planning learns of products with one matrix at the left of a batch.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

std::vector<KernelCandidate> left_candidates(llvm::StringRef device, llvm::StringRef op, const Attrs& attrs,
                                             const Type& a, const Type& b) {
  const DeviceDescription card = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find(device));
  const Type* const operands[] = {&a, &b};
  const OpCall call(get_op(op), attrs, operands);
  return CudaCatalog(card).candidates(call.op, call, llvm::cantFail(infer(call)));
}

Type bf16(const Shape& shape) { return Type(DType::BF16, shape); }

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("products with a matrix at the left of a batch have our own kernel, and take what was measured") {
    struct Call {
      int64_t batch, rows, depth, columns;
      double product_us, sum_us;  // on an H200
    };
    for (const Call& c : {Call{128, 196, 196, 768, 28.7, 30.0},
                          {128, 384, 196, 768, 40.2, 40.4},
                          {128, 196, 384, 768, 38.8, 39.3},
                          {128, 196, 196, 384, 18.0, 19.5},
                          {64, 49, 49, 512, 4.8, 10.0},
                          {64, 256, 256, 512, 14.4, 18.5}}) {
      CAPTURE(c.rows);
      CAPTURE(c.depth);
      CAPTURE(c.columns);
      const Type w = bf16({c.rows, c.depth}), x = bf16({c.batch, c.depth, c.columns}),
                 dy = bf16({c.batch, c.rows, c.columns});
      CHECK(predicted_us(left_candidates("h200", "matmul", {}, w, x), "warpgroup_left") ==
            doctest::Approx(c.product_us).epsilon(0.15));
      const Attrs sums{{"dtype", DType::F32}, {"row_sums", int64_t{1}}};
      CHECK(predicted_us(left_candidates("h200", "matmul_sum", sums, dy, x), "warpgroup") ==
            doctest::Approx(c.sum_us).epsilon(0.15));
    }
  }

  TEST_CASE("products with a matrix at the left are the library's where our kernel does not take them") {
    const auto first = [](llvm::StringRef device, const Attrs& attrs, const Type& a, const Type& b) {
      return left_candidates(device, "matmul", attrs, a, b).front().name;
    };
    const Type w = bf16({196, 196}), x = bf16({128, 196, 768});
    CHECK(first("h200", {{"transpose_a", int64_t{1}}}, w, x) == "warpgroup_left");
    CHECK(first("a100", {}, w, x) == "cublaslt");
    CHECK(first("h200", {}, w, bf16({128, 196, 764})) == "cublaslt");
    CHECK(first("h200", {}, bf16({128, 196, 196}), x) == "cublaslt");
    CHECK(first("h200", {{"transpose_b", int64_t{1}}}, w, bf16({128, 768, 196})) == "cublaslt");
    CHECK(first("h200", {}, bf16({1024, 196}), x) == "cublaslt");
    CHECK(first("h200", {}, Type(DType::F32, {196, 196}), Type(DType::F32, {128, 196, 768})) == "cublaslt");
    CHECK(first("h200", {}, w, bf16({196, 768})) == "cublaslt");
  }

  TEST_CASE("parts of summed products fit the workspace that a plan gives them") {
    const Type a = bf16({128, 196, 768});
    const Type* const operands[] = {&a, &a};
    const OpCall call(get_op("matmul_sum"), {}, operands);
    const cuda::LeftGradientTiles whole = left_gradient_tiles(call, 132, INT64_MAX);
    CHECK(whole.blocks() == 132);
    const int64_t bytes = whole.workspace() * static_cast<int64_t>(sizeof(float)) / 3;
    const cuda::LeftGradientTiles less = left_gradient_tiles(call, 132, bytes);
    CHECK(less.parts == whole.parts / 3);
    CHECK(less.workspace() * static_cast<int64_t>(sizeof(float)) <= bytes);
  }
}
