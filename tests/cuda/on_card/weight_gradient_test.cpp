#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Our own weight gradient on sizes that cross its tiles, steps and parts of the depth, with what the op's samples are
// too small for.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_CASE("weight gradient: dw and dbias of tiles with rims, of both sides and types, are near the reference's") {
  const CudaCatalog catalog(card_under_test());
  struct Sizes {
    int64_t depth, inner, columns;
  };
  for (const auto& [depth, inner, columns] :
       {Sizes{1, 8, 8}, {65, 136, 24}, {777, 264, 520}, {1500, 1000, 8}, {5000, 96, 96}, {900, 64, 192}})
    for (DType dtype : {DType::BF16, DType::F16})
      for (DType to : {dtype, DType::F32})
        for (int64_t transpose_w : {0, 1})
          for (bool adds : {false, true}) {
            CAPTURE(depth);
            CAPTURE(columns);
            const Shape dw = transpose_w ? Shape{columns, inner} : Shape{inner, columns};
            const KernelCase c("linear_dw", {{"bias", int64_t{1}}, {"dtype", to}, {"transpose_w", transpose_w}},
                               {samples::normal({depth, inner}, dtype), samples::normal({depth, columns}, dtype),
                                adds ? samples::normal(dw, to) : samples::absent()},
                               7);
            bool found = false;
            for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
              if (kernel.name != "warpgroup_bgrad") continue;
              found = true;
              const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c);
              check_results(c, got, run_reference(c));
              CHECK(std::memcmp(got[0].data(), CaseOnCard(c, kernel, {}).run(c)[0].data(),
                                static_cast<size_t>(got[0].type().bytes())) == 0);
            }
            CHECK(found);
          }
}
