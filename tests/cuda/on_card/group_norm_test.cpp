#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

#include <string>

// Group norms with channels last of enough samples that blocks make slabs of them, for which the op's samples are too
// few: slabs of one group and of several, groups that begin within an access, slabs that do not fit shared memory, and
// slabs that clusters of blocks share, of parts without positions as well.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

struct Images {
  int64_t batch, inner, channels, groups;
  bool channels_last = true;
};

std::vector<KernelCase> cases_of(const Images& images, DType dtype, DType parameter, const char* activation) {
  using namespace samples;
  const int64_t last = images.channels_last;
  const Shape shape =
      last ? Shape{images.batch, images.inner, images.channels} : Shape{images.batch, images.channels, images.inner};
  const Shape statistics{images.batch, images.groups};
  const SampleOperand of_channels = normal({images.channels}, parameter);
  const std::string name = activation;
  const Attrs forward{{"groups", images.groups}, {"eps", 1e-5}, {"channels_last", last}, {"activation", name}};
  const Attrs backward{{"groups", images.groups},
                       {"has_scale", int64_t{1}},
                       {"has_bias", int64_t{1}},
                       {"channels_last", last},
                       {"activation", name}};
  return {KernelCase("group_norm", forward, {normal(shape, dtype), of_channels, of_channels}, 5),
          KernelCase("group_norm_grad", backward,
                     {normal(shape, dtype), normal(shape, dtype), normal(statistics), positive(statistics), of_channels,
                      of_channels},
                     6)};
}

}  // namespace

TEST_CASE("group norms in slabs: near the reference's, with the same bits again") {
  const CudaCatalog catalog(card_under_test());
  for (const Images& images : {Images{64, 64, 128, 32},
                               {128, 9, 32, 8},
                               {7, 1024, 512, 32},
                               {100, 17, 40, 4},
                               {130, 5, 24, 24},
                               {110, 300, 512, 1},
                               {120, 2, 16, 2},
                               {101, 1, 64, 16},
                               {200, 33, 60, 5},
                               {3, 1500, 320, 32},
                               {13, 21, 64, 8},
                               {16, 5, 64, 4},
                               {50, 3000, 64, 4}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (bool has_own_type : {false, true})
        for (const char* activation : {"none", "silu"}) {
          // Of large images, which take the reference long, only every other combination.
          constexpr int64_t large = 1 << 20;
          const bool is_large = images.batch * images.inner * images.channels > large;
          if (is_large && has_own_type != (activation == std::string("silu"))) continue;
          for (const KernelCase& c : cases_of(images, dtype, has_own_type ? dtype : DType::F32, activation)) {
            CAPTURE(c.op.name);
            CAPTURE(images.batch);
            CAPTURE(images.channels);
            CAPTURE(activation);
            check_kernels_twice(catalog, c);
          }
        }
}

// Of few samples: rows of one position and of several, single elements where these are no whole accesses, tiles of
// columns of which the last is not full, parts with and without rows for all threads, and planes of channels.
TEST_CASE("group norms in parts: near the reference's, with the same bits again") {
  const CudaCatalog catalog(card_under_test());
  for (const Images& images : {Images{1, 4096, 64, 64},
                               {2, 3000, 32, 8},
                               {2, 96, 30, 30},
                               {2, 35, 33, 11},
                               {1, 3000, 3, 1},
                               {2, 1, 16, 2},
                               {2, 40, 600, 2},
                               {1, 500, 513, 3},
                               {3, 777, 12, 3, false},
                               {1, 4096, 8, 8, false},
                               {2, 1, 6, 2, false},
                               {1, 9000, 2, 1, false}})
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (const char* activation : {"none", "relu", "silu"}) {
        if (dtype == DType::F16 && activation != std::string("silu")) continue;
        for (const KernelCase& c : cases_of(images, dtype, DType::F32, activation)) {
          CAPTURE(c.op.name);
          CAPTURE(images.inner);
          CAPTURE(images.channels);
          CAPTURE(activation);
          check_kernels_twice(catalog, c);
        }
      }
}
