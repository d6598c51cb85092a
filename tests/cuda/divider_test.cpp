#include "kernels/cuda/common/divider.h"

#include <doctest/doctest.h>

// Quotients by a multiplication and a shift, beside those of the machine.

using plimsoll::cuda::Divider32;

TEST_SUITE("unit") {
  TEST_CASE("quotients are exact below 2^31") {
    constexpr int64_t most = (int64_t{1} << 31) - 1;
    for (int64_t by :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{9}, int64_t{16}, int64_t{49}, int64_t{784},
          int64_t{3136}, int64_t{12544}, int64_t{65535}, int64_t{1} << 20, (int64_t{1} << 30) + 1, most})
      for (int64_t n :
           {int64_t{0}, int64_t{1}, by - 1, by, by * 1000 - 1, by * 1000, most / by * by - 1, most / by * by, most}) {
        if (n > most) continue;
        INFO(n, " by ", by);
        const Divider32 divider(static_cast<int32_t>(by));
        CHECK(divider.quotient(static_cast<int32_t>(n)) == n / by);
        if (n + by - 1 <= most) CHECK(divider.quotient_up(static_cast<int32_t>(n)) == (n + by - 1) / by);
        auto rest = static_cast<int32_t>(n);
        CHECK(divider.divide(rest) == n / by);
        CHECK(rest == n % by);
      }
    CHECK(Divider32(0).quotient(0) == 0);
  }
}
