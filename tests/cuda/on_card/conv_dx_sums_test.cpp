#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own product with the sums of a batch norm's gradient on sizes that cross its tiles, the steps of the depth and
// the tiles of one block, with what the op's samples are too small for.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Sizes {
  int64_t rows, depth, columns;
};
// What stands behind the norm.
enum class Behind : uint8_t { Nothing, Relu, Residual, ResidualOfTwo };

KernelCase case_of(const Sizes& s, Behind behind, DType dtype) {
  const Shape x{s.rows, 1, s.columns};
  const auto image = [&](bool there) { return there ? samples::normal(x, dtype) : samples::absent(); };
  const auto channel = [&] { return samples::normal({s.columns}); };
  // Their products have few bits: rounded otherwise, one gradient would change the sums by more than their limits.
  const auto small_integers = [&](samples::Dims dims) { return samples::integers(dims, -1, 1, dtype); };
  return KernelCase(
      "conv_dx_sums", {{"channels_last", int64_t{1}}, {"eps", 1e-5}, {"shape", Ints{s.rows, 1, s.columns}}},
      {small_integers({s.rows, 1, s.depth}), small_integers({s.depth, 1, s.columns}), image(true), channel(), channel(),
       samples::positive({s.columns}), behind == Behind::Relu ? channel() : samples::absent(),
       image(behind == Behind::Residual || behind == Behind::ResidualOfTwo), image(behind == Behind::ResidualOfTwo)},
      19);
}

std::vector<Tensor> run_own(const KernelCase& c) {
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c))
    if (kernel.name == "warpgroup_sums") return CaseOnCard(c, kernel, {}).run(c);
  FAIL("there is no kernel of our own");
  return {};
}

}  // namespace

TEST_CASE("product with a norm's sums: tiles with rims, of all gates and types, are near the reference's") {
  for (const Sizes& s : {Sizes{1, 8, 8}, {130, 72, 200}, {777, 136, 328}, {20000, 24, 72}, {300, 1032, 264}})
    for (Behind behind : {Behind::Nothing, Behind::Relu, Behind::Residual, Behind::ResidualOfTwo})
      for (DType dtype : {DType::BF16, DType::F16}) {
        CAPTURE(s.rows);
        CAPTURE(s.columns);
        CAPTURE(static_cast<int>(behind));
        const KernelCase c = case_of(s, behind, dtype);
        const std::vector<Tensor> got = run_own(c), again = run_own(c);
        check_results(c, got, run_reference(c));
        for (size_t r = 0; r < got.size(); ++r)
          CHECK(std::memcmp(got[r].data(), again[r].data(), static_cast<size_t>(got[r].type().bytes())) == 0);
      }
}
