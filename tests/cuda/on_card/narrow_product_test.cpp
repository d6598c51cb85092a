#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Products of many rows with few columns on one side: every number of held elements, rows at odd addresses, tiles that
// end early, and blocks with several tiles.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// Compares our own kernel with the reference, and with itself.
void check_own(const CudaCatalog& catalog, const KernelCase& c, llvm::StringRef name) {
  bool found = false;
  for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
    if (kernel.name != name) continue;
    found = true;
    const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c), again = CaseOnCard(c, kernel, {}).run(c);
    check_results(c, got, run_reference(c));
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::memcmp(got[i].data(), again[i].data(), static_cast<size_t>(got[i].type().bytes())) == 0);
  }
  CHECK(found);
}
void check_narrow(const CudaCatalog& catalog, const KernelCase& c) { check_own(catalog, c, "narrow"); }

struct Sizes {
  int64_t rows, inner, columns;
};

}  // namespace

TEST_CASE("narrow products and gradients are near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  constexpr DType dtypes[] = {DType::BF16, DType::F32, DType::F16};
  int64_t number = 0;
  for (const auto& [rows, inner, columns] : {Sizes{513, 1, 1},
                                             {700, 4, 4},
                                             {777, 3, 4},
                                             {517, 2, 33},
                                             {512, 3, 70},
                                             {600, 5, 7},
                                             {512, 16, 20},
                                             {519, 12, 40},
                                             {530, 8, 8},
                                             {540, 256, 1},
                                             {545, 255, 3},
                                             {520, 100, 8},
                                             {512, 17, 16},
                                             {530, 128, 11}})
    for (bool adds : {false, true}) {
      const DType dtype = dtypes[number % 3];
      const int64_t transpose_w = number++ % 2;
      CAPTURE(inner);
      CAPTURE(columns);
      CAPTURE(transpose_w);
      const Shape w = transpose_w ? Shape{columns, inner} : Shape{inner, columns};
      const SampleOperand x = normal({rows, inner}, dtype), y = normal({rows, columns}, dtype);
      check_narrow(
          catalog,
          KernelCase("linear", {{"transpose_w", transpose_w}},
                     {x, normal(w, dtype), adds ? normal({columns}, dtype) : absent(), adds ? y : absent()}, 7));
      for (DType to : {dtype, DType::F32})
        check_narrow(catalog,
                     KernelCase("linear_dw", {{"bias", int64_t{adds}}, {"dtype", to}, {"transpose_w", transpose_w}},
                                {x, y, adds ? normal(w, to) : absent()}, 7));
    }
}

TEST_CASE("products of many matrices by few rows are near the reference's, with the same bits again") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  constexpr DType dtypes[] = {DType::BF16, DType::F16};
  int64_t number = 0;
  for (const auto& [few, down, across] :
       {Sizes{1, 16, 16}, {4, 128, 16}, {4, 16, 128}, {3, 48, 32}, {8, 80, 48}, {9, 32, 48}, {16, 64, 16}}) {
    const DType dtype = dtypes[number++ % 2];
    const int64_t matrices = 256 + 7 * number;
    CAPTURE(few);
    CAPTURE(down);
    CAPTURE(across);
    const SampleOperand large = normal({matrices, down, across}, dtype), of_down = normal({matrices, few, down}, dtype),
                        of_across = normal({2, matrices / 2, few, across}, dtype);
    const SampleOperand large_too = normal({2, matrices / 2, down, across}, dtype),
                        of_down_too = normal({2, matrices / 2, few, down}, dtype);
    check_own(catalog, KernelCase("matmul", {}, {of_down, large}, 7), "few_rows");
    check_own(catalog, KernelCase("matmul", {{"transpose_b", 1}}, {of_across, large_too}, 7), "few_rows");
    check_own(catalog, KernelCase("matmul", {{"transpose_a", 1}}, {of_down_too, of_across}, 7), "few_rows");
  }
}

TEST_CASE("narrow products of blocks with several tiles") {
  using namespace samples;
  const CudaCatalog catalog(card_under_test());
  for (const auto& [rows, inner, columns] : {Sizes{15001, 3, 4}, {6000, 2, 19}, {9001, 40, 3}}) {
    CAPTURE(rows);
    const SampleOperand x = normal({rows, inner}, DType::BF16), y = normal({rows, columns}, DType::BF16);
    check_narrow(catalog, KernelCase("linear", {}, {x, normal({inner, columns}, DType::BF16)}, 7));
    check_narrow(catalog, KernelCase("linear_dw", {{"bias", int64_t{1}}, {"dtype", DType::F32}}, {x, y}, 7));
  }
}
