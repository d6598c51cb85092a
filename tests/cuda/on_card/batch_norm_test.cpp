#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

#include <string>

// Batch norms in one launch on what the op's samples are too small for: channels that are no whole 16-byte words, slabs
// of channels, several parts of the rows, and tensors that the multiprocessors' shared memory does not hold.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Images {
  int64_t batch, inner, channels;
};

// An activation, and whether a residual, or another dy beside it, stands before it.
struct Behind {
  const char* activation;
  bool residual = false, more_dy = false;
};

KernelCase forward_case(const Images& images, DType dtype, DType parameter, const Behind& behind) {
  using namespace samples;
  const SampleOperand x = normal({images.batch, images.inner, images.channels}, dtype),
                      of_channels = normal({images.channels}, parameter);
  std::vector<SampleOperand> operands{x, of_channels, of_channels};
  if (behind.residual) operands.push_back(x);
  return {"batch_norm",
          {{"channels_last", int64_t{1}}, {"eps", 1e-5}, {"activation", std::string(behind.activation)}},
          operands,
          3};
}

// Where there is no residual, a norm with an activation has its bias; with one, y says what a ReLU let through.
KernelCase backward_case(const Images& images, DType dtype, DType parameter, const Behind& behind) {
  using namespace samples;
  const SampleOperand x = normal({images.batch, images.inner, images.channels}, dtype),
                      of_channels = normal({images.channels}, parameter), mean = normal({images.channels}),
                      var = positive({images.channels});
  const std::string activation = behind.activation;
  Attrs attrs{{"channels_last", int64_t{1}}, {"eps", 1e-5}};
  if (activation != "none") attrs.set("activation", activation);
  std::vector<SampleOperand> operands{x, x, of_channels, mean, var};
  if (behind.residual) {
    operands.push_back(absent());
    operands.push_back(x);
    if (behind.more_dy) operands.push_back(x);
  } else if (activation != "none") {
    operands.push_back(of_channels);
  }
  return {"batch_norm_grad", attrs, operands, 4};
}

void check_resident(const KernelCase& c) {
  size_t checked = 0;
  const std::vector<Tensor> wanted = run_reference(c);
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c)) {
    if (kernel.name != "resident") continue;
    const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c), again = CaseOnCard(c, kernel, {}).run(c);
    check_results(c, got, wanted);
    for (size_t r = 0; r < got.size(); ++r)
      CHECK(std::memcmp(got[r].data(), again[r].data(), static_cast<size_t>(got[r].type().bytes())) == 0);
    ++checked;
  }
  CHECK(checked == 1);
}

}  // namespace

TEST_CASE("batch norms in one launch: near the reference's, with the same bits again") {
  constexpr int64_t large = 1 << 20;
  for (const Images& images : {Images{4, 36, 2},
                               {4, 36, 18},
                               {6, 50, 36},
                               {5, 7, 64},
                               {1, 1, 64},
                               {2, 2, 18},
                               {24, 49, 144},
                               {30, 200, 72},
                               {8, 12, 100},
                               {3, 41, 184},
                               {2, 30, 2144},
                               {16, 49, 512},
                               {3, 3136, 18},
                               {64, 3136, 18},
                               {12, 12544, 100}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (const Behind& behind :
           {Behind{"none"}, {"relu"}, {"silu"}, {"none", true}, {"relu", true}, {"relu", true, true}}) {
        // Of large images, which take the reference long, only some combinations.
        const bool is_large = images.batch * images.inner * images.channels > large;
        if (is_large && (dtype == DType::F16 || behind.more_dy != (dtype == DType::BF16) || !behind.residual)) continue;
        CAPTURE(images.inner);
        CAPTURE(images.channels);
        CAPTURE(dtype);
        CAPTURE(behind.activation);
        CAPTURE(behind.residual);
        const DType parameter = behind.residual ? dtype : DType::F32;
        if (!behind.more_dy) check_resident(forward_case(images, dtype, parameter, behind));
        if (!behind.residual || behind.activation == std::string("relu"))
          check_resident(backward_case(images, dtype, parameter, behind));
      }
}

// All elements are far from 0.
TEST_CASE("batch norms in one launch: variances of large numbers do not cancel") {
  using namespace samples;
  const Images images{64, 784, 18};
  check_resident(KernelCase("batch_norm", {{"channels_last", int64_t{1}}, {"eps", 1e-5}},
                            {integers({images.batch, images.inner, images.channels}, 40, 43, DType::BF16),
                             normal({images.channels}), normal({images.channels})},
                            5));
}
