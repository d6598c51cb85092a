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
    check(16384, 50257, 768, "sorted", 111);
    check(1100000, 100000, 48, "sorted", 222);
    check(65537, 512, 64, "sorted", 78);
    const auto added = candidates_on_h200(
        "gather_grad", {{"axis", int64_t{0}}, {"size", int64_t{257216}}, {"dtype", DType::F32}},
        {Type(DType::I64, {2048}), Type(DType::BF16, {2048, 2048}), Type(DType::F32, {257216, 2048})});
    CHECK(predicted_us(added, "sorted") == doctest::Approx(588).epsilon(0.2));
  }

  TEST_CASE("sorts of indices and reductions of their segments take as long as was measured") {
    const auto sort_us = [](int64_t count, int64_t size) {
      return predicted_us(candidates_on_h200("sort_indices", {{"size", size}}, {Type(DType::I64, {count})}), "radix");
    };
    CHECK(sort_us(262144, 512) == doctest::Approx(43).epsilon(0.15));
    CHECK(sort_us(655360, 32768) == doctest::Approx(80).epsilon(0.15));
    CHECK(sort_us(1100000, 100000) == doctest::Approx(138).epsilon(0.15));
    CHECK(sort_us(18000000, 300000) == doctest::Approx(1897).epsilon(0.15));
    CHECK(sort_us(18000000, 20000000) == doctest::Approx(3036).epsilon(0.15));
    const auto reduce = [](int64_t count, int64_t size, int64_t inner, DType x, DType y, llvm::StringRef reduction) {
      Attrs attrs{{"reduction", reduction.str()}};
      if (x != y) attrs.set("dtype", y);
      return candidates_on_h200("segment_reduce", attrs,
                                {Type(x, {count, inner}), Type(DType::I32, {count}), Type(DType::I32, {count}),
                                 Type(DType::I32, {size + 1})});
    };
    const DType f32 = DType::F32, bf16 = DType::BF16, f64 = DType::F64;
    const auto check = [&](int64_t count, int64_t size, int64_t inner, DType x, DType y, llvm::StringRef reduction,
                           double us) {
      CAPTURE(us);
      CHECK(predicted_us(reduce(count, size, inner, x, y, reduction), "rows") == doctest::Approx(us).epsilon(0.25));
    };
    check(1100000, 100000, 256, f32, f32, "add", 303);
    check(1100000, 100000, 256, bf16, bf16, "add", 190);
    check(1100000, 100000, 48, f32, f32, "add", 79);
    check(1100000, 100000, 48, bf16, bf16, "add", 63);
    check(655360, 32768, 128, bf16, bf16, "add", 68);
    check(16384, 50257, 768, f32, f32, "add", 83);
    check(32768, 40961, 1024, f32, f32, "none", 94);
    CHECK(reduce(500, 30, 7, bf16, f32, "add").front().name == "rows");
    CHECK(reduce(500, 30, 7, f64, f64, "max").front().name == "rows");
    CHECK(reduce(500, 30, 7, bf16, f32, "max").front().name == "reference");
    CHECK(reduce(500, 30, 7, f64, f32, "add").front().name == "reference");
    CHECK(reduce(500, 30, 7, f32, f32, "none").front().workspace_bytes == 0);
    CHECK(reduce(500, 30, 7, f32, f32, "add").front().workspace_bytes ==
          cuda::segment_reduce_workspace_bytes(1, 7, 500, 4));
  }

  TEST_CASE("sums of looked up rows take as long as was measured, with weights and their gradients") {
    const DType f32 = DType::F32, bf16 = DType::BF16;
    struct Call {
      int64_t count, size, inner, heads;
      DType x, y;
      bool has_weights, has_base;
      std::optional<DType> factors;
    };
    const auto candidates = [&](const Call& c) {
      Attrs attrs;
      if (c.heads != 1) attrs.set("heads", c.heads);
      if (c.x != c.y) attrs.set("dtype", c.y);
      const Type entries(DType::I32, {c.count});
      const Type x(c.x, {c.size, c.inner}), picks(DType::I64, {c.count}), starts(DType::I32, {c.size + 1});
      const Type weights(f32, {c.count, c.heads}), y(c.y, {c.size, c.inner});
      const Type factors(c.factors.value_or(f32), {c.size, c.inner});
      llvm::SmallVector<const Type*, 8> types{&x, &picks, &entries, &entries, &starts, nullptr, nullptr, nullptr};
      if (c.has_weights) types[5] = &weights;
      if (c.has_base) types[6] = &y;
      if (c.factors) types[7] = &factors;
      const OpCall call(get_op("gather_sum"), attrs, types);
      const CudaCatalog catalog(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")));
      return catalog.candidates(call.op, call, llvm::cantFail(infer(call)));
    };
    const auto check = [&](const Call& call, double us) {
      CAPTURE(us);
      CHECK(candidates(call).front().name == "groups");
      CHECK(candidates(call).front().predicted_us == doctest::Approx(us).epsilon(0.15));
    };
    constexpr int64_t edges = 1100000, nodes = 100000;
    check({edges, nodes, 256, 1, bf16, f32, true, false, {}}, 191);
    check({edges, nodes, 256, 1, f32, bf16, true, false, {}}, 292);
    check({edges, nodes, 256, 4, bf16, f32, true, false, {}}, 218);
    check({edges, nodes, 256, 4, f32, bf16, true, false, bf16}, 387);
    check({edges, nodes, 256, 4, bf16, bf16, true, false, bf16}, 334);
    check({edges, nodes, 48, 1, bf16, f32, true, false, {}}, 54);
    check({edges, nodes, 48, 1, f32, bf16, true, false, {}}, 73);
    check({edges, nodes, 48, 4, bf16, f32, true, false, {}}, 104);
    check({edges, nodes, 48, 4, f32, bf16, true, false, bf16}, 124);
    check({655360, 65536, 128, 1, bf16, bf16, false, true, {}}, 54);
    check({400000, 50000, 512, 1, bf16, bf16, false, false, {}}, 130);
    check({400000, 50000, 512, 1, f32, f32, true, true, {}}, 264);
    check({20000, 5000, 256, 1, f32, f32, true, false, {}}, 10);
    // Products of a head are added up by one group of lanes, which has 64 vectors at most.
    CHECK(candidates({500, 30, 512, 1, bf16, f32, true, false, f32}).front().name == "groups");
    CHECK(candidates({500, 30, 520, 1, bf16, f32, true, false, f32}).front().name == "reference");
    CHECK(candidates({500, 30, 8, 1, DType::F64, DType::F64, true, false, {}}).front().name == "reference");
    CHECK(candidates({128, 30, 8, 1, f32, f32, true, false, {}}).front().workspace_bytes == 0);
    CHECK(candidates({500, 30, 8, 1, f32, f32, true, false, {}}).front().workspace_bytes ==
          cuda::segment_reduce_workspace_bytes(1, 8, 500, 4));
  }

  TEST_CASE("few long lines are scanned by parts, many short ones by threads or warps of their own") {
    const auto check = [](Ints shape, int64_t axis, DType dtype, llvm::StringRef name, double us) {
      const auto all = candidates_on_h200("cumsum", {{"axis", axis}}, {Type(dtype, Shape(shape.begin(), shape.end()))});
      CAPTURE(us);
      CHECK(all.front().name == name);
      CHECK(all.front().predicted_us == doctest::Approx(us).epsilon(0.2));
    };
    check({32768, 8}, 0, DType::I64, "parts", 10.5);
    check({1, 1000000}, 1, DType::F32, "parts", 22.6);
    check({8192, 3072}, 1, DType::F32, "scan", 202);
    check({1536, 256}, 1, DType::F32, "scan", 9);
    check({8, 4, 32, 64, 128}, 3, DType::F32, "scan", 46.6);
  }

  TEST_CASE("a thread looks for the few largest of a short line, a warp in a long one, and blocks sort others") {
    const auto candidates = [](Ints shape, int64_t k, DType dtype) {
      return candidates_on_h200("top_k", {{"axis", int64_t{1}}, {"k", k}},
                                {Type(dtype, Shape(shape.begin(), shape.end()))});
    };
    const auto check = [&](Ints shape, int64_t k, DType dtype, llvm::StringRef name, double us) {
      CAPTURE(us);
      CHECK(predicted_us(candidates(shape, k, dtype), name) == doctest::Approx(us).epsilon(0.2));
    };
    check({16384, 8}, 2, DType::BF16, "short_lines", 8.2);
    check({1000000, 8}, 1, DType::F32, "short_lines", 29);
    check({65536, 16}, 8, DType::F32, "short_lines", 54);
    check({4096, 64}, 4, DType::F32, "repeated_search", 13.9);
    check({16384, 128}, 2, DType::BF16, "repeated_search", 28.5);
    check({8, 50257}, 8, DType::F32, "repeated_search", 4330);
    check({4096, 1024}, 8, DType::F32, "sorted_lines", 74);
    check({16384, 8}, 2, DType::F32, "sorted_lines", 12.8);
    check({16384, 54}, 54, DType::F32, "sorted_lines", 31);
    check({8, 1600}, 300, DType::F32, "sorted_lines", 18.7);
    CHECK(candidates({16384, 8}, 2, DType::BF16).front().name == "short_lines");
    CHECK(candidates({16384, 54}, 54, DType::BF16).front().name == "sorted_lines");
    CHECK(candidates({8, 50257}, 8, DType::F32).front().name == "repeated_search");
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
