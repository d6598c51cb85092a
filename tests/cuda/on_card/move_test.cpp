#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Copies whose rows begin at any address, on tensors of several bands of rows and of elements of every width.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// By every kernel, in every place that the results may have; results are the reference's, bit for bit.
void check_moved(llvm::StringRef op, const Attrs& attrs, std::vector<SampleOperand> operands) {
  const KernelCase c(op, attrs, std::move(operands), 17);
  const std::vector<Tensor> expected = run_reference(c);
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c))
    for (const auto& overlaps : overlaps_of(c)) check_results(c, CaseOnCard(c, kernel, overlaps).run(c), expected);
}

}  // namespace

TEST_CASE("moves: odd rows and parts of wholes are the reference's") {
  using namespace samples;
  for (DType dtype : {DType::BF16, DType::F32}) {
    for (int64_t rows : {40'007, 16, 3}) {
      check_moved("split", {{"axis", 1}, {"sizes", Ints{9, 24, 1, 13}}}, {normal({rows, 47}, dtype)});
      check_moved("concat", {{"axis", 1}},
                  {normal({rows, 9}, dtype), normal({rows, 24}, dtype), normal({rows, 1}, dtype)});
      check_moved("concat", {{"axis", 1}}, {normal({rows, 24}, dtype), normal({rows, 24}, dtype)});
      check_moved("split", {{"axis", 1}, {"sizes", Ints{24, 24}}}, {normal({rows, 48}, dtype)});
      check_moved("pad", {{"before", Ints{0, 3}}, {"after", Ints{1, -2}}}, {normal({rows, 27}, dtype)});
      check_moved("slice", {{"starts", Ints{1, 2}}, {"sizes", Ints{rows - 1, 7}}, {"steps", Ints{1, 3}}},
                  {normal({rows, 27}, dtype)});
      check_moved("slice_grad", {{"starts", Ints{1, 2}}, {"shape", Ints{rows + 5, 31}}, {"steps", Ints{1, 1}}},
                  {normal({rows, 27}, dtype)});
    }
    check_moved("pad", {{"before", Ints{0, 1, 2}}, {"after", Ints{0, 2, 3}}, {"mode", std::string("reflect")}},
                {normal({65, 31, 33}, dtype)});
    check_moved("pad", {{"before", Ints{0, 4, 2}}, {"after", Ints{0, 2, 5}}, {"mode", std::string("wrap")}},
                {normal({65, 31, 33}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 2, 3, 1}}}, {normal({5, 3, 29, 31}, dtype)});
    check_moved("transpose", {{"perm", Ints{2, 0, 3, 1}}}, {normal({3, 5, 4, 7}, dtype)});
    check_moved("slice", {{"starts", Ints{1, 0, 1}}, {"sizes", Ints{9, 6, 5}}, {"steps", Ints{1, 2, 2}}},
                {normal({11, 12, 13}, dtype)});
  }
}

TEST_CASE("moves: permutations of short dimensions are the reference's") {
  using namespace samples;
  for (DType dtype : {DType::BF16, DType::F32, DType::F64}) {
    check_moved("transpose", {{"perm", Ints{0, 4, 1, 3, 2}}}, {normal({9, 4, 12, 12, 64}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 1, 3, 4, 6, 5, 2}}}, {normal({2, 3, 32, 2, 2, 12, 12}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 1, 2, 4, 3}}}, {normal({3, 100, 2, 12, 20}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 3, 2, 1}}}, {normal({5, 49, 24, 32}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 3, 2, 1}}}, {normal({5, 32, 24, 49}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 3, 5, 2, 4, 1}}}, {normal({33, 32, 2, 8, 2, 8}, dtype)});
    check_moved("transpose", {{"perm", Ints{3, 2, 1, 0}}}, {normal({5, 7, 11, 13}, dtype)});
    check_moved("transpose", {{"perm", Ints{0, 2, 1}}}, {normal({700, 128, 16}, dtype)});
  }
  check_moved("transpose", {{"perm", Ints{0, 2, 1}}}, {bools({70, 60, 96})});
}
