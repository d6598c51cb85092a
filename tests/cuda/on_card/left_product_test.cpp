#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own products of one matrix with each of a batch, and their sums over the batch, on sizes that cross tiles and
// steps, with what the ops' samples are too small for.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Sizes {
  int64_t batch, rows, depth, columns;
};
constexpr Sizes all_sizes[] = {{1, 1, 1, 8},     {3, 50, 37, 40},    {2, 196, 196, 136}, {5, 199, 200, 72},
                               {2, 200, 199, 8}, {2, 384, 196, 264}, {2, 196, 384, 128}, {2, 512, 512, 64}};

// Runs the kernel of that name twice: results are near the reference's, and the same bits.
void check_kernel(const CudaCatalog& catalog, const KernelCase& c, llvm::StringRef name) {
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

}  // namespace

TEST_CASE("products with a matrix at the left of a batch are near the reference's, however the matrix lies") {
  const CudaCatalog catalog(card_under_test());
  for (const Sizes& s : all_sizes)
    for (DType dtype : {DType::BF16, DType::F16})
      for (int64_t transposes : {0, 1}) {
        CAPTURE(s.rows);
        CAPTURE(s.depth);
        CAPTURE(s.columns);
        const Shape w = transposes ? Shape{s.depth, s.rows} : Shape{s.rows, s.depth};
        check_kernel(catalog,
                     KernelCase("matmul", {{"transpose_a", transposes}},
                                {samples::normal(w, dtype), samples::normal({s.batch, s.depth, s.columns}, dtype)}, 7),
                     "warpgroup_left");
      }
}

TEST_CASE("products with a matrix at the left take batches of several dimensions") {
  const CudaCatalog catalog(card_under_test());
  check_kernel(
      catalog,
      KernelCase("matmul", {},
                 {samples::normal({1, 1, 40, 70}, DType::BF16), samples::normal({3, 2, 70, 48}, DType::BF16)}, 7),
      "warpgroup_left");
}

TEST_CASE("products that are summed over a batch, and sums of rows, are near the reference's") {
  const CudaCatalog catalog(card_under_test());
  for (const Sizes& s : all_sizes)
    for (DType dtype : {DType::BF16, DType::F16})
      for (DType to : {dtype, DType::F32})
        for (int64_t row_sums : {0, 1}) {
          CAPTURE(s.rows);
          CAPTURE(s.depth);
          CAPTURE(s.columns);
          check_kernel(catalog,
                       KernelCase("matmul_sum", {{"dtype", to}, {"row_sums", row_sums}},
                                  {samples::normal({s.batch, s.rows, s.columns}, dtype),
                                   samples::normal({s.batch, s.depth, s.columns}, dtype)},
                                  7),
                       "warpgroup");
        }
}
