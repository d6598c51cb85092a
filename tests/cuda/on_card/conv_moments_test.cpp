#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own product with moments on sizes that cross its tiles, the steps of the depth and the tiles of one block, with
// what the op's samples are too small for.

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

KernelCase case_of(const Sizes& s, const SampleOperand& x, const SampleOperand& w) {
  CAPTURE(s.rows);
  return KernelCase("conv_moments", {{"channels_last", int64_t{1}}}, {x, w}, 17);
}

Shape image(const Sizes& s) { return {s.rows, 1, s.depth}; }
Shape weight(const Sizes& s) { return {s.columns, 1, s.depth}; }

}  // namespace

TEST_CASE("product with moments: tiles with rims, kept and streamed weights, of both types, are near the reference's") {
  for (const Sizes& s :
       {Sizes{1, 8, 8}, {130, 72, 200}, {777, 136, 328}, {64, 520, 40}, {20000, 24, 72}, {300, 1032, 264}})
    for (DType dtype : {DType::BF16, DType::F16}) {
      CAPTURE(s.rows);
      CAPTURE(s.columns);
      // Of few bits: an element of y that is rounded otherwise would change the moments by more than their limits.
      const KernelCase c =
          case_of(s, samples::integers(image(s), -1, 1, dtype), samples::integers(weight(s), -1, 1, dtype));
      const std::vector<Tensor> got = run_by(c, "warpgroup_moments"), again = run_by(c, "warpgroup_moments");
      check_results(c, got, run_reference(c));
      for (size_t r = 0; r < got.size(); ++r) CHECK(are_same(got[r], again[r]));
    }
}

// Sums of small integers are exact in any order, so that y has the library's bits, and moments are of the same
// elements.
TEST_CASE("product with moments: y has the library's bits, and the moments are those of a pass behind it") {
  for (const Sizes& s : {Sizes{520, 72, 264}, {60000, 64, 1032}}) {
    CAPTURE(s.rows);
    const KernelCase c =
        case_of(s, samples::integers(image(s), -3, 4, DType::BF16), samples::integers(weight(s), -3, 4, DType::BF16));
    const std::vector<Tensor> own = run_by(c, "warpgroup_moments"), library = run_by(c, "cudnn");
    CHECK(are_same(own[0], library[0]));
    for (int64_t i = 0; i < own[1].type().elements(); ++i) {
      CHECK(std::abs(own[1].get(i) - library[1].get(i)) <= 1e-5 * std::sqrt(library[2].get(i)));
      CHECK(own[2].get(i) == doctest::Approx(library[2].get(i)).epsilon(1e-5));
    }
  }
}

// Of positive operands the mean of y is far from 0: sums of squares would lose what the variance consists of.
TEST_CASE("product with moments: variances are exact beside a large mean") {
  const Sizes s{30000, 512, 16};
  const KernelCase c = case_of(s, samples::positive(image(s), DType::F16), samples::positive(weight(s), DType::F16));
  const std::vector<Tensor> got = run_by(c, "warpgroup_moments");
  for (int64_t column = 0; column < s.columns; ++column) {
    double mean = 0, var = 0;
    for (int64_t row = 0; row < s.rows; ++row)
      mean += got[0].get(row * s.columns + column) / static_cast<double>(s.rows);
    for (int64_t row = 0; row < s.rows; ++row) {
      const double away = got[0].get(row * s.columns + column) - mean;
      var += away * away / static_cast<double>(s.rows);
    }
    CHECK(mean * mean > 400 * var);
    CHECK(got[1].get(column) == doctest::Approx(mean).epsilon(1e-6));
    CHECK(got[2].get(column) == doctest::Approx(var).epsilon(1e-5));
  }
}
