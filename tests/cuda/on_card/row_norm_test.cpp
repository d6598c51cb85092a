#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Row norms and their gradients, whose rows are the work of some lanes of a warp or of teams of any size, with accesses
// that only some threads have, and with more rows than the card takes at once, for which the op's samples are too
// small.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Rows {
  int64_t count, width;
};

enum class Behind : uint8_t { Nothing, Dropout };

KernelCase gradient_case(bool centered, const Rows& rows, DType dtype, DType parameter, bool adds, Behind behind) {
  using namespace samples;
  const Shape shape{rows.count, rows.width}, statistics{rows.count, 1};
  std::vector<SampleOperand> operands{normal(shape, dtype), normal(shape, dtype)};
  if (centered) operands.push_back(normal(statistics));
  operands.push_back(positive(statistics));
  if (behind == Behind::Dropout) operands.push_back(values({2}, {1234567, 3}, DType::I64));
  operands.push_back(normal({rows.width}, parameter));
  operands.push_back(adds ? normal(shape, dtype) : absent());
  Attrs attrs{{"axis", int64_t{1}}, {"has_scale", int64_t{1}}};
  if (centered) attrs.set("has_bias", int64_t{1});
  std::string op = centered ? "layer_norm_grad" : "rms_norm_grad";
  if (behind == Behind::Dropout) {
    op += "_dropout";
    attrs.set("ratio", 0.3);
    attrs.set("id", int64_t{5});
    attrs.set("first_draw", int64_t{12});
  }
  return KernelCase(op, attrs, operands, 11);
}

KernelCase forward_case(bool centered, const Rows& rows, DType dtype, DType parameter) {
  using namespace samples;
  std::vector<SampleOperand> operands{normal({rows.count, rows.width}, dtype), normal({rows.width}, parameter)};
  if (centered) operands.push_back(normal({rows.width}, parameter));
  return KernelCase(centered ? "layer_norm" : "rms_norm", {{"axis", int64_t{1}}, {"eps", 1e-5}}, operands, 12);
}

void check_gradients(DType dtype) {
  const CudaCatalog catalog(card_under_test());
  for (const Rows& rows : {Rows{1, 8},  {3, 264},    {5000, 24},  {20000, 64}, {9001, 128}, {4500, 200}, {4300, 256},
                           {2500, 768}, {700, 1032}, {300, 1600}, {140, 4096}, {100, 1024}, {3, 12288},  {3, 12296},
                           {40, 770},   {3000, 180}, {2100, 90},  {1500, 60},  {700, 508},  {40, 516},   {33, 27}})
    for (bool has_own_type : {false, true})
      for (bool centered : {false, true})
        for (bool adds : {false, true}) {
          CAPTURE(rows.width);
          CAPTURE(centered);
          CAPTURE(adds);
          for (Behind behind : {Behind::Nothing, Behind::Dropout})
            check_kernels_twice(catalog,
                                gradient_case(centered, rows, dtype, has_own_type ? dtype : DType::F32, adds, behind));
        }
}

}  // namespace

TEST_CASE("row norms: rows of lanes, of a warp and of a block are near the reference's, with the same bits again") {
  const CudaCatalog catalog(card_under_test());
  for (const Rows& rows : {Rows{1, 8},  {70, 24},  {1003, 64}, {515, 128}, {77, 200},  {130, 256}, {19, 512},
                           {31, 768},   {7, 1024}, {3, 1032},  {29, 1152}, {17, 1600}, {5, 1792},  {6, 1800},
                           {1003, 180}, {517, 90}, {29, 62},   {41, 300},  {19, 892},  {7, 900},   {33, 27}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (bool has_own_type : {false, true})
        for (bool centered : {false, true}) {
          CAPTURE(rows.width);
          CAPTURE(centered);
          check_kernels_twice(catalog, forward_case(centered, rows, dtype, has_own_type ? dtype : DType::F32));
        }
}

TEST_CASE("gradients of row norms in bf16: rows of any team are near the reference's, with the same bits again") {
  check_gradients(DType::BF16);
}
TEST_CASE("gradients of row norms in f16: rows of any team are near the reference's, with the same bits again") {
  check_gradients(DType::F16);
}
TEST_CASE("gradients of row norms in f32: rows of any team are near the reference's, with the same bits again") {
  check_gradients(DType::F32);
}
