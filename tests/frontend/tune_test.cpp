#include "frontend/api/tune.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("kernels agree whose results differ by rounding, and no others") {
    const std::vector<float> results{1, -2, 3, 0.5f};
    CHECK(same_but_for_rounding(results, results));
    CHECK(same_but_for_rounding(results, {1.01f, -2.01f, 2.98f, 0.51f}));
    CHECK_FALSE(same_but_for_rounding(results, {1, -2, 3, 1}));
    CHECK_FALSE(same_but_for_rounding(results, {1, -2, 3}));
    CHECK_FALSE(same_but_for_rounding(results, {1, -2, NAN, 0.5f}));
    CHECK_FALSE(same_but_for_rounding({0, 0}, {0, 1e-3f}));
  }

  TEST_CASE("what overflows in the first kernel says nothing of another") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    CHECK(same_but_for_rounding({1, infinity, NAN}, {1, 2, 3}));
    CHECK_FALSE(same_but_for_rounding({1, infinity, NAN}, {2, infinity, NAN}));
  }
}

}  // namespace
}  // namespace plimsoll
