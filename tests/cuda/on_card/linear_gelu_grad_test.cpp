#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own product with gelu's slope on sizes that cross its tiles, the steps of the depth and the tiles that one block
// makes, with what the op's samples are too small for.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Sizes {
  int64_t rows, depth, columns;
};

std::vector<Tensor> run_by(const KernelCase& c, llvm::StringRef name) {
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c))
    if (kernel.name == name) return CaseOnCard(c, kernel, {}).run(c);
  FAIL("no kernel of that name: " << name.str());
  return {};
}

bool are_same(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.type().bytes())) == 0;
}

Attrs attrs_of(const std::string& form, int64_t transpose_w) {
  return {{"approximate", form}, {"transpose_w", transpose_w}};
}

}  // namespace

TEST_CASE("product with gelu's slope: tiles with rims, of both forms, types and orders, are near the reference's") {
  for (const auto& [rows, depth, columns] :
       {Sizes{1, 8, 8}, {130, 64, 264}, {300, 136, 520}, {77, 1000, 8}, {140, 24, 96}, {300, 72, 192}, {200, 40, 360}})
    for (DType dtype : {DType::BF16, DType::F16})
      for (const char* form : {"none", "tanh"})
        for (int64_t transpose_w : {0, 1}) {
          CAPTURE(rows);
          CAPTURE(form);
          CAPTURE(transpose_w);
          const Shape w = transpose_w ? Shape{columns, depth} : Shape{depth, columns};
          const KernelCase c("linear_gelu_grad", attrs_of(form, transpose_w),
                             {samples::normal({rows, depth}, dtype), samples::normal(w, dtype),
                              samples::normal({rows, columns}, dtype)},
                             11);
          const std::vector<Tensor> got = run_by(c, "warpgroup_gelu");
          check_results(c, got, run_reference(c));
          CHECK(are_same(got[0], run_by(c, "warpgroup_gelu")[0]));
        }
}

// Sums of small integers are exact in any order, so that the product that the library rounds is ours.
TEST_CASE("product with gelu's slope: bits are those of a product and a launch behind it") {
  for (const auto& [rows, depth, columns] : {Sizes{520, 72, 264}, {20000, 64, 1032}, {20000, 24, 96}, {20000, 64, 192}})
    for (DType dtype : {DType::BF16, DType::F16})
      for (const char* form : {"none", "tanh"})
        for (int64_t transpose_w : {0, 1}) {
          CAPTURE(rows);
          CAPTURE(form);
          const Shape w = transpose_w ? Shape{columns, depth} : Shape{depth, columns};
          const KernelCase c("linear_gelu_grad", attrs_of(form, transpose_w),
                             {samples::integers({rows, depth}, -3, 4, dtype), samples::integers(w, -3, 4, dtype),
                              samples::normal({rows, columns}, dtype)},
                             13);
          CHECK(are_same(run_by(c, "warpgroup_gelu")[0], run_by(c, "cublaslt")[0]));
        }
}
