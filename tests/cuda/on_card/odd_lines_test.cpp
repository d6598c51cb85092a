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
