#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Gradients of row norms whose rows are the work of teams of any size, with accesses that only some threads have, and
// with more rows than the card takes at once, for which the op's samples are too small.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Rows {
  int64_t count, width;
};

KernelCase gradient_case(bool centered, const Rows& rows, DType dtype, DType parameter, bool adds) {
  using namespace samples;
  const Shape shape{rows.count, rows.width}, statistics{rows.count, 1};
  std::vector<SampleOperand> operands{normal(shape, dtype), normal(shape, dtype)};
  if (centered) operands.push_back(normal(statistics));
  operands.push_back(positive(statistics));
  operands.push_back(normal({rows.width}, parameter));
  operands.push_back(adds ? normal(shape, dtype) : absent());
  Attrs attrs{{"axis", int64_t{1}}, {"has_scale", int64_t{1}}};
  if (centered) attrs.set("has_bias", int64_t{1});
  return KernelCase(centered ? "layer_norm_grad" : "rms_norm_grad", attrs, operands, 11);
}

}  // namespace

TEST_CASE("gradients of row norms: rows of any team are near the reference's, with the same bits again") {
  const CudaCatalog catalog(card_under_test());
  for (const Rows& rows : {Rows{1, 8},
                           {3, 264},
                           {5000, 24},
                           {2500, 768},
                           {700, 1032},
                           {300, 1600},
                           {140, 4096},
                           {3, 12288},
                           {3, 12296},
                           {40, 770}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (bool has_own_type : {false, true})
        for (bool centered : {false, true})
          for (bool adds : {false, true}) {
            CAPTURE(rows.width);
            CAPTURE(centered);
            CAPTURE(adds);
            const KernelCase c = gradient_case(centered, rows, dtype, has_own_type ? dtype : DType::F32, adds);
            check_kernels_twice(catalog, c);
          }
}
