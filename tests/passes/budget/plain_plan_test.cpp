#include "passes/budget/plain_plan.h"

#include "passes/budget/budget_report.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

Plan plan_of(int64_t bytes, int64_t peak_live_bytes) {
  Plan plan;
  Arena arena;
  arena.bytes = bytes;
  arena.peak_live_bytes = peak_live_bytes;
  plan.arenas.push_back(arena);
  return plan;
}

TEST_SUITE("unit") {
  TEST_CASE("plain plan: layouts are searched once bounds of the bytes do not decide") {
    int searches = 0;
    const PlainPlan plain(plan_of(1100, 1000), [&] {
      ++searches;
      return plan_of(1040, 1000);
    });
    CHECK(plain.min_bytes() == 1000);
    CHECK(plain.min_bytes() == least_bytes(plain.first()));
    CHECK_FALSE(plain.is_within(999));
    CHECK(plain.is_within(1100));
    CHECK(searches == 0);
    CHECK(plain.is_within(1040));
    CHECK_FALSE(plain.is_within(1039));
    CHECK(plain.plan().promised_bytes() == 1040);
    CHECK(searches == 1);
    CHECK(plain.first().promised_bytes() == 1100);
  }

  TEST_CASE("plain plan: a final layout needs what it needs, whatever is alive") {
    const PlainPlan plain(plan_of(1100, 1000));
    CHECK(plain.min_bytes() == 1100);
    CHECK_FALSE(plain.is_within(1099));
    CHECK(plain.is_within(1100));
    CHECK(&plain.plan() == &plain.first());
  }
}

}  // namespace
}  // namespace plimsoll
