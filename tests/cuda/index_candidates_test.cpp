#include "kernels/cuda/index/index_workspace.h"
#include "tests/support/kernel_candidates.h"

// Which kernels pick and sum elements by index, and what that takes: no device is needed.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("unit") {
  TEST_CASE("sums along lines that fit shared memory need no sort") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const CudaCatalog catalog(h200);
    auto names = [&](Ints y, Ints indices, int64_t axis, llvm::StringRef reduction) {
      const Type to(DType::BF16, Shape(y.begin(), y.end())), at(DType::I64, Shape(indices.begin(), indices.end()));
      return names_of(catalog, "scatter_elements", {{"axis", axis}, {"reduction", reduction.str()}},
                      {to, at, Type(DType::BF16, at.shape)});
    };
    CHECK(names({192, 512, 512}, {192, 512, 700}, 2, "add") == "lines sorted reference ");
    CHECK(names({128, 197, 768}, {128, 50, 768}, 1, "add") == "lines sorted reference ");
    CHECK(names({128, 197, 768}, {128, 50, 768}, 1, "max") == "sorted reference ");
    CHECK(names({128, 197, 768}, {128, 50, 700}, 1, "add") == "sorted reference ");
    CHECK(names({4, 20000}, {4, 50}, 1, "add") == "sorted reference ");
    CHECK(names({4, 500, 8}, {4, 50, 8}, 1, "add") == "sorted reference ");
  }

  TEST_CASE("the gradient of picking along lines takes what fits, and shared indices first") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const CudaCatalog catalog(h200);
    auto names = [&](Ints indices, Ints dy, int64_t axis, int64_t size) {
      return names_of(
          catalog, "gather_elements_grad", {{"axis", axis}, {"size", size}},
          {Type(DType::I64, Shape(indices.begin(), indices.end())), Type(DType::BF16, Shape(dy.begin(), dy.end()))});
    };
    CHECK(names({512, 512}, {192, 512, 512}, 2, 512) == "shared_lines lines sorted reference ");
    CHECK(names({192, 512, 512}, {192, 512, 512}, 2, 512) == "lines sorted reference ");
    CHECK(names({50, 64}, {8, 50, 64}, 1, 100) == "lines sorted reference ");
    CHECK(names({8, 5000}, {64, 8, 5000}, 2, 5000) == "lines sorted reference ");
    CHECK(names({64, 1}, {64, 1}, 1, 50257) == "sorted reference ");
    const Type scores(DType::BF16, {192, 512, 512});
    CHECK(names_of(catalog, "gather_elements", {{"axis", int64_t{2}}}, {scores, Type(DType::I64, {512, 512})}) ==
          "lines elements reference ");
    CHECK(names_of(catalog, "gather_elements", {{"axis", int64_t{1}}}, {scores, Type(DType::I64, {512, 512})}) ==
          "elements reference ");
  }

  TEST_CASE("gradients of small tables look through all indices, those of large ones sort them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const CudaCatalog catalog(h200);
    const auto check = [&](int64_t count, int64_t size, int64_t inner, llvm::StringRef name, double us) {
      const Type indices(DType::I64, {count}), dy(DType::F32, {count, inner});
      const llvm::SmallVector<const Type*, 4> types{&indices, &dy};
      const Attrs attrs{{"axis", int64_t{0}}, {"size", size}};
      const OpCall call(get_op("gather_grad"), attrs, types);
      const KernelCandidate first = catalog.candidates(call.op, call, llvm::cantFail(infer(call))).front();
      CAPTURE(count);
      CHECK(first.name == name);
      CHECK(first.predicted_us == doctest::Approx(us).epsilon(0.2));
    };
    check(38416, 729, 12, "scan", 23.1);
    check(2401, 169, 12, "scan", 5.8);
    check(16384, 50257, 768, "sorted", 104);
    check(1100000, 100000, 48, "sorted", 441);
    check(65537, 512, 64, "sorted", 75);
  }

  TEST_CASE("rows of a table that looks through all indices are shared by blocks") {
    for (int64_t size : {1, 2, 131, 132, 133, 729, 5000})
      for (int64_t inner : {1, 12, 128, 384}) {
        const cuda::ScannedRows scanned(3, size, inner);
        CHECK(scanned.blocks == 3 * ((size + scanned.rows - 1) / scanned.rows));
        CHECK(cuda::scan_warps * scanned.rows * inner <= cuda::max_line_floats);
      }
    CHECK_FALSE(cuda::ScannedRows::fit(385));
  }
}
