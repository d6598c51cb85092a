#include "passes/budget/host_shares.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("what stages leave of their hosts goes to those that want more") {
    using Bytes = std::vector<int64_t>;
    const HostUse first{100, 100, true}, second{100, 40, false}, third{100, 70, false}, last{100, 100, true};
    // All ranks on one host: 60 and 30 are left of two ranks each, for four that want them.
    CHECK(more_of_hosts({first, second, third, last}, 2, 8) == Bytes{45, 0, 0, 45});
    // Two stages a host.
    CHECK(more_of_hosts({first, second, third, last}, 2, 4) == Bytes{60, 0, 0, 30});
    // Three ranks a host: the first has 60 for two ranks, the second 120 for none, the last nothing for two.
    CHECK(more_of_hosts({first, second, third, last}, 2, 3) == Bytes{30, 0, 0, 0});
    // A host with one stage alone has nothing to give.
    CHECK(more_of_hosts({first, second}, 2, 2) == Bytes{0, 0});
    // More than its share leaves nothing.
    CHECK(more_of_hosts({first, {100, 120, false}}, 1, 2) == Bytes{0, 0});
  }
}

}  // namespace
}  // namespace plimsoll
