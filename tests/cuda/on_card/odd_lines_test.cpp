#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Tensors whose lines are no whole words: broadcasts, rows of one element that are looked up, sums around what is kept,
// and the scores of pixels.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

void check_twice(llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<SampleOperand> operands) {
  INFO(op.str());
  check_kernels_twice(CudaCatalog(card_under_test()), KernelCase(op, attrs, operands, 7));
}

}  // namespace

TEST_CASE("broadcasts over odd lines: the reference's, with the same bits again") {
  using namespace samples;
  // Lines of a column and of a row, of either alone, and shorter than what a thread has.
  struct Shapes {
    Shape a, b;
  };
  for (const Shapes& s : {Shapes{{300, 7, 1}, {300, 1, 9}},
                          {{37, 6, 7, 7}, {37, 6, 1, 1}},
                          {{1, 3, 49, 49}, {5, 1, 49, 49}},
                          {{700, 5}, {5}},
                          {{3, 70, 3}, {70, 1}},
                          {{11, 4, 1, 13}, {1, 4, 13, 13}},
                          {{2, 1001}, {2, 1}},
                          {{9, 2, 8, 1}, {9, 2, 1, 64}},
                          {{5, 16, 1}, {16, 32}}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
      for (llvm::StringRef op : {"add", "mul", "less", "max"})
        check_twice(op, {}, {normal(s.a, dtype), normal(s.b, dtype)});
      check_twice("where", {}, {bools(s.a), normal(s.b, dtype), normal({}, dtype)});
    }
}

TEST_CASE("rows of one element that many lines look up: the reference's, with the same bits again") {
  using namespace samples;
  for (DType dtype : {DType::BF16, DType::F32}) {
    check_twice("gather", {{"axis", int64_t{1}}}, {normal({2203, 300, 1}, dtype), integers({4, 512}, 0, 299)});
    check_twice("gather", {{"axis", int64_t{1}}}, {normal({3, 300}, dtype), integers({77}, -300, 299)});
  }
}

TEST_CASE("sums around what is kept: near the reference's, with the same bits again") {
  using namespace samples;
  for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    for (llvm::StringRef op : {"reduce_sum", "reduce_mean", "reduce_max"}) {
      for (const Shape& slabs :
           {Shape{512, 6, 30}, Shape{33, 7, 333}, Shape{40, 300, 2}, Shape{32, 1, 4096}, Shape{70, 3, 4097}})
        check_twice(op, {{"axes", Ints{0, 2}}}, {normal(slabs, dtype)});
      for (int64_t columns : {150, 54, 63, 2, 108})
        check_twice(op, {{"axes", Ints{0}}}, {normal({3001, columns}, dtype)});
      check_twice(op, {{"axes", Ints{2, 4}}}, {normal({64, 5, 6, 3, 7}, dtype)});
      check_twice(op, {{"axes", Ints{1, 3}}}, {normal({3, 50, 2, 60}, dtype)});
    }
  }
}

TEST_CASE("cross-entropy of pixels with its gradient: near the reference's, with the same bits again") {
  using namespace samples;
  const auto check = [&](const Attrs& attrs, llvm::ArrayRef<SampleOperand> operands) {
    check_twice("cross_entropy_with_grad", attrs, operands);
  };
  for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    // Whole tiles and parts of them, in words of 16 bytes and of 4, few classes and many, and planes that are no words.
    for (const Shape& shape : {Shape{2, 2, 33, 32}, Shape{3, 150, 11, 14}, Shape{2, 19, 1026}, Shape{1, 1000, 100},
                               Shape{2, 21, 7, 9}, Shape{1, 1700, 6}}) {
      Shape pixels = shape;
      pixels.erase(pixels.begin() + 1);
      check({{"ignore_index", int64_t{1}}}, {normal(shape, dtype), integers(pixels, 0, shape[1] - 1), normal({})});
    }
    check({{"label_smoothing", 0.1}, {"reduction", std::string("sum")}},
          {normal({2, 150, 520}, dtype), integers({2, 520}, 0, 149), normal({}), positive({150})});
    check({{"ignore_index", int64_t{-1}}, {"reduction", std::string("none")}},
          {normal({2, 5, 600}, dtype), integers({2, 600}, -1, 4), normal({2, 600}), absent(), normal({2, 600})});
  }
}
