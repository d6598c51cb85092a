#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// The cross-entropy with its gradient that keeps rows in shared memory, on rows that its samples are too short for: of
// one block and of clusters, with chunks that are not full, padded columns, and everything that a loss may ask for.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

std::vector<Tensor> run_by(const KernelCase& c, llvm::StringRef name) {
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c))
    if (kernel.name == name) return CaseOnCard(c, kernel, overlaps_of(c).back()).run(c);
  FAIL("no kernel of that name: " << name.str());
  return {};
}

void check_clusters(const Attrs& attrs, std::vector<SampleOperand> operands) {
  const KernelCase c("cross_entropy_with_grad", attrs, operands, 17);
  const std::vector<Tensor> got = run_by(c, "clusters"), again = run_by(c, "clusters");
  check_results(c, got, run_reference(c));
  for (size_t r = 0; r < got.size(); ++r)
    CHECK(std::memcmp(got[r].data(), again[r].data(), static_cast<size_t>(got[r].type().bytes())) == 0);
}

}  // namespace

TEST_CASE("cross-entropy in clusters: long rows are near the reference's, and equal calls give equal bits") {
  using namespace samples;
  for (DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    check_clusters({{"ignore_index", int64_t{3}}}, {normal({7, 8200}, dtype), integers({7}, 0, 8199), normal({})});
    check_clusters({{"classes", int64_t{50257}}},
                   {normal({5, 50304}, dtype), integers({5}, 0, 50256), normal({}), positive({50257})});
    check_clusters({{"label_smoothing", 0.1}, {"reduction", std::string("sum")}},
                   {normal({3, 128256}, dtype), integers({3}, 0, 128255), normal({}), positive({128256})});
    check_clusters(
        {{"ignore_index", int64_t{-1}}, {"reduction", std::string("none")}, {"classes", int64_t{255991}}},
        {normal({3, 256000}, dtype), values({3}, {255990, -1, 0}, DType::I64), normal({3}), absent(), normal({3})});
  }
}
