#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Rows of a few elements, which some lanes of a warp take: accesses of every width, lanes beyond a row's last access,
// rows beyond the last one, and those just too long.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_CASE("softmax and reductions of short rows: near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  const auto check = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<SampleOperand> operands) {
    INFO(op.str());
    check_kernels_twice(catalog, KernelCase(op, attrs, operands, 7));
  };
  for (int64_t length : {1, 3, 4, 6, 24, 33, 64, 65, 100, 256, 264})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
      if (dtype == DType::F16 && length > 24) continue;
      CAPTURE(length);
      const Shape rows{137, length}, more_rows{3, 211, length};
      for (llvm::StringRef op : {"softmax", "log_softmax"}) {
        check(op, {{"axis", int64_t{1}}}, {normal(rows, dtype)});
        check((op + "_grad").str(), {{"axis", int64_t{1}}}, {unit(rows, dtype), normal(rows, dtype)});
      }
      for (llvm::StringRef op : {"reduce_sum", "reduce_mean", "reduce_max"})
        check(op, {{"axes", Ints{2}}}, {normal(more_rows, dtype)});
      check("reduce_min", {{"axes", Ints{0, 2}}}, {normal(more_rows, dtype)});
    }
}

TEST_CASE("softmax of rows that registers hold: near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  struct Rows {
    int64_t outer, length, inner;
  };
  // Warps and blocks, few and many elements a thread, with accesses of one and of four, and rows that share a span.
  for (const Rows& s :
       {Rows{137, 196, 1}, {61, 197, 1},  {61, 255, 1},  {33, 784, 1},  {33, 1023, 1}, {9, 1028, 1}, {9, 4095, 1},
        {5, 4100, 1},      {3, 16384, 1}, {3, 16383, 1}, {2, 16388, 1}, {37, 196, 4},  {11, 9, 32},  {5, 65, 16},
        {3, 1000, 8},      {3, 5000, 2},  {7, 100, 3},   {7, 16, 200},  {61, 9, 64},   {37, 5, 33},  {5, 17, 40}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
      INFO(s.outer, " x ", s.length, " x ", s.inner);
      const Shape shape{s.outer, s.length, s.inner};
      for (llvm::StringRef op : {"softmax", "log_softmax"}) {
        const Attrs attrs{{"axis", int64_t{1}}};
        check_kernels_twice(catalog, KernelCase(op, attrs, {normal(shape, dtype)}, 7));
        check_kernels_twice(catalog,
                            KernelCase((op + "_grad").str(), attrs, {unit(shape, dtype), normal(shape, dtype)}, 7));
      }
    }
}

TEST_CASE("reductions over a few rows: near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  struct Rows {
    int64_t outer, length, inner;
  };
  for (const Rows& s : {Rows{5, 2, 26312}, {700, 5, 196}, {1500, 12, 12}, {4100, 3, 14}, {2400, 7, 7}, {131, 128, 130}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (llvm::StringRef op : {"reduce_sum", "reduce_mean", "reduce_max"}) {
        INFO(op.str(), " of ", s.outer, " x ", s.length, " x ", s.inner);
        Attrs attrs{{"axes", Ints{1}}};
        if (op == "reduce_sum" && s.length == 2) attrs.set("dtype", DType::F32);
        check_kernels_twice(catalog, KernelCase(op, attrs, {normal({s.outer, s.length, s.inner}, dtype)}, 7));
      }
}

TEST_CASE("reductions of integers are the reference's") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  for (DType dtype : {DType::I64, DType::I32})
    for (const Ints& axes : {Ints{2}, Ints{0}, Ints{1}, Ints{0, 2}, Ints{0, 1, 2}})
      for (llvm::StringRef op : {"reduce_sum", "reduce_max", "reduce_min"}) {
        INFO(op.str());
        SampleOperand numbers = integers({61, 7, 33}, -1000, 1000);
        numbers.type.dtype = dtype;
        check_kernels_twice(catalog, KernelCase(op, {{"axes", axes}}, {numbers}, 7));
      }
}

TEST_CASE("cross-entropies of few classes: near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  for (int64_t classes : {4, 21, 64, 65, 256})
    for (int64_t stored : {classes, classes + 3})
      for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
        CAPTURE(classes);
        CAPTURE(stored);
        Attrs attrs{{"label_smoothing", 0.1}, {"ignore_index", int64_t{1}}};
        if (stored != classes) attrs.set("classes", classes);
        const SampleOperand logits = normal({301, stored}, dtype), labels = integers({301}, 0, classes - 1);
        check_kernels_twice(catalog, KernelCase("cross_entropy", attrs, {logits, labels, positive({classes})}, 3));
        check_kernels_twice(catalog, KernelCase("cross_entropy_grad", attrs,
                                                {logits, labels, positive({301}), positive({}), normal({})}, 4));
        check_kernels_twice(catalog, KernelCase("cross_entropy_with_grad", attrs,
                                                {logits, labels, normal({}), positive({classes}), normal({301})}, 5));
      }
}
