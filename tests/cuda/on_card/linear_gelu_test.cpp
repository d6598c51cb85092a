#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own product with its gelu, and layers of short sums by the same tiles, on sizes that cross these tiles, the steps
// of the depth and the tiles that one block makes, with what the ops' samples are too small for.

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

void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == b[i]);
}

// With each form, type and order of w, with a bias and without.
template <typename F>
void for_each_case(llvm::ArrayRef<Sizes> sizes, F run) {
  for (const auto& [rows, depth, columns] : sizes)
    for (DType dtype : {DType::BF16, DType::F16})
      for (const char* form : {"none", "tanh"})
        for (int64_t transpose_w : {0, 1}) {
          CAPTURE(rows);
          CAPTURE(form);
          CAPTURE(transpose_w);
          const Attrs attrs{{"approximate", std::string(form)}, {"transpose_w", transpose_w}};
          const Type x(dtype, {rows, depth}), w(dtype, transpose_w ? Shape{columns, depth} : Shape{depth, columns});
          run(attrs, x, w, Type(dtype, {columns}));
        }
}

}  // namespace

TEST_CASE("product with its gelu: tiles with rims, of all forms, types and orders, are near the reference's") {
  for_each_case({{1, 8, 8},
                 {130, 64, 264},
                 {300, 136, 520},
                 {77, 1000, 8},
                 {330, 648, 264},
                 {140, 24, 96},
                 {300, 72, 192},
                 {200, 40, 360},
                 {70, 136, 40}},
                [](const Attrs& attrs, const Type& x, const Type& w, const Type& bias) {
                  const KernelCase c("linear_gelu", attrs,
                                     {samples::normal(x.shape, x.dtype), samples::normal(w.shape, x.dtype),
                                      samples::normal(bias.shape, x.dtype)},
                                     11);
                  const std::vector<Tensor> got = run_by(c, "warpgroup_gelu");
                  check_results(c, got, run_reference(c));
                  check_same(got, run_by(c, "warpgroup_gelu"));
                });
}

// Sums of small integers are exact in any order, so that the product that the library rounds is ours.
TEST_CASE("product with its gelu: bits are those of a product and a launch behind it, with a bias and without") {
  for_each_case({{520, 72, 264}, {20000, 64, 1032}, {20000, 640, 1032}, {20000, 24, 96}, {20000, 64, 192}},
                [](const Attrs& attrs, const Type& x, const Type& w, const Type& bias) {
                  for (bool has_bias : {true, false}) {
                    CAPTURE(has_bias);
                    const KernelCase c(
                        "linear_gelu", attrs,
                        {samples::integers(x.shape, -3, 4, x.dtype), samples::integers(w.shape, -3, 4, x.dtype),
                         has_bias ? samples::normal(bias.shape, x.dtype) : samples::absent()},
                        13);
                    check_same(run_by(c, "warpgroup_gelu"), run_by(c, "cublaslt"));
                  }
                });
}

// Integers again, so that bits are the library's.
TEST_CASE("product of short sums: tiles with rims are near the reference's, and bits are the library's") {
  for (const auto& [rows, depth, columns] :
       {Sizes{1, 32, 8}, {130, 48, 96}, {300, 96, 264}, {77, 256, 8}, {140, 64, 192}, {20000, 80, 360}})
    for (DType dtype : {DType::BF16, DType::F16})
      for (int64_t transpose_w : {0, 1})
        for (bool has_bias : {true, false}) {
          CAPTURE(rows);
          CAPTURE(transpose_w);
          const Shape w = transpose_w ? Shape{columns, depth} : Shape{depth, columns};
          const KernelCase c("linear", {{"transpose_w", transpose_w}},
                             {samples::integers({rows, depth}, -3, 4, dtype), samples::integers(w, -3, 4, dtype),
                              has_bias ? samples::integers({columns}, -9, 9, dtype) : samples::absent()},
                             17);
          const std::vector<Tensor> got = run_by(c, "warpgroup");
          check_results(c, got, run_reference(c));
          check_same(got, run_by(c, "warpgroup"));
          check_same(got, run_by(c, "cublaslt"));
        }
}
