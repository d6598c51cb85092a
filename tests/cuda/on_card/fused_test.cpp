#include "ir/support/strings.h"
#include "tests/cuda/on_card/case_on_card.h"
#include "tests/kernels/fused_cases.h"

#include <cstring>

// Generated kernels of fused ops against the reference, apart and in place; each gives the same bits twice.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

void check_generated(const KernelCase& c) {
  INFO(c.attrs.get_string("body").str());
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
  const KernelCandidate kernel = candidates_of(catalog, c).front();
  CHECK(starts_with(kernel.name, "generated"));
  const std::vector<Tensor> wanted = run_reference(c);
  for (const std::vector<InPlace>& overlaps : overlaps_of(c)) {
    INFO(overlaps.size(), " results in place");
    CaseOnCard on_card(c, kernel, overlaps);
    const std::vector<Tensor> once = on_card.run(c), again = on_card.run(c);
    check_results(c, once, wanted);
    for (size_t r = 0; r < once.size(); ++r)
      CHECK(std::memcmp(once[r].data(), again[r].data(), static_cast<size_t>(once[r].type().bytes())) == 0);
  }
}

}  // namespace

TEST_CASE("generated kernels have every op of a body") {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (const KernelCase& c : fused_element_cases(dtype)) check_generated(c);
}

TEST_CASE("generated kernels go over lines that no run divides") {
  for (const KernelCase& c : fused_line_cases()) check_generated(c);
}

TEST_CASE("generated kernels reduce columns and rows") {
  for (const KernelCase& c : fused_reduction_cases()) check_generated(c);
}
