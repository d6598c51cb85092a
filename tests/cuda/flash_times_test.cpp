#include "tests/support/kernel_candidates.h"

// What attention on the vector units takes where heads fill little of its tiles: no device is needed.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("cuda/flash-times") {
  // LeViT's and MobileViT's heads of 16 rows, as an H200 measured them: 45.8, 1043, 58 and 209 us.
  TEST_CASE("kernels on the vector units are known to be slow at few rows") {
    const Type q(DType::BF16, {256, 16, 128}), v(DType::BF16, {256, 16, 256}), bias(DType::BF16, {8, 16, 16}),
        lse(DType::F32, {256, 8, 16}), q60(DType::BF16, {512, 16, 240}), lse60(DType::F32, {512, 4, 16});
    const Attrs eight{{"heads", int64_t{8}}, {"kv_heads", int64_t{8}}, {"scale", 0.25}};
    const Attrs four{{"heads", int64_t{4}}, {"kv_heads", int64_t{4}}, {"scale", 0.13}};
    const auto levit = candidates_on_h200("attention", eight, {q, q, v, bias});
    CHECK(predicted_us(levit, "flash") == doctest::Approx(45.8).epsilon(0.16));
    CHECK(levit.front().name == "mma");
    const auto levit_grad = candidates_on_h200("attention_grad_with_mask", eight, {q, q, v, v, lse, v, bias});
    CHECK(predicted_us(levit_grad, "flash") == doctest::Approx(1043).epsilon(0.15));
    CHECK(levit_grad.front().name != "flash");
    const auto mobilevit = candidates_on_h200("attention", four, {q60, q60, q60});
    CHECK(predicted_us(mobilevit, "flash") == doctest::Approx(58).epsilon(0.16));
    CHECK(mobilevit.front().name == "few_rows");
    const auto mobilevit_grad = candidates_on_h200("attention_grad", four, {q60, q60, q60, q60, lse60, q60});
    CHECK(predicted_us(mobilevit_grad, "flash") == doctest::Approx(209).epsilon(0.15));
    CHECK(mobilevit_grad.front().name == "few_rows");
  }
}
