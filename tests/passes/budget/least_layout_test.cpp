#include "passes/budget/least_layout.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <vector>

namespace plimsoll {
namespace {

constexpr int64_t any_bytes = std::numeric_limits<int64_t>::max();

// A layout by what is known of it, one after the other.
struct Known {
  int64_t reckoned_bytes, live_bytes;
  LayoutNeed placed, finished;
};

struct Found {
  std::optional<size_t> layout;
  int counted = 0, placed = 0, finished = 0;
};

Found find_least(const std::vector<Known>& layouts, int64_t enough_bytes) {
  std::vector<int64_t> reckoned_bytes;
  for (const Known& layout : layouts) reckoned_bytes.push_back(layout.reckoned_bytes);
  std::atomic<int> counted = 0, placed = 0, finished = 0;
  Found found;
  found.layout = least_layout(
      reckoned_bytes, enough_bytes, [&](size_t i) { return ++counted, layouts[i].live_bytes; },
      [&](size_t i) { return ++placed, layouts[i].placed; }, [&](size_t i) { return ++finished, layouts[i].finished; });
  found.counted = counted, found.placed = placed, found.finished = finished;
  return found;
}

// What a layout needs once all are placed and the four closest of those at most 3 % above the least are finished.
LayoutNeed least_of_all(std::vector<Known> layouts) {
  llvm::stable_sort(layouts, [](const Known& a, const Known& b) { return a.placed < b.placed; });
  const LayoutNeed rough = layouts.front().placed;
  LayoutNeed least = rough;
  for (const Known& layout : llvm::ArrayRef<Known>(layouts).take_front(4))
    if (layout.placed.is_above_host == rough.is_above_host && layout.placed.bytes <= rough.bytes * 103 / 100)
      least = std::min(least, layout.finished);
  return least;
}

// Live bytes are 3 % below to 10 % above the reckoned ones, and layouts up to a sixth above the live bytes, a few of
// them above the host's.
std::vector<Known> random_layouts(std::mt19937& random) {
  const auto between = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  std::vector<Known> layouts;
  for (size_t left = 1 + random() % 40; left > 0; --left) {
    Known layout;
    layout.reckoned_bytes = 100'000 + static_cast<int64_t>(random() % 20'000);
    layout.live_bytes = static_cast<int64_t>(between(0.9701, 1.1) * static_cast<double>(layout.reckoned_bytes));
    const double waste = between(0, 1) < 0.3 ? 0 : between(0, 1. / 6);
    const auto height = static_cast<int64_t>((1 + waste) * static_cast<double>(layout.live_bytes));
    layout.placed = {random() % 8 == 0, height};
    layout.finished = {
        layout.placed.is_above_host,
        layout.live_bytes + static_cast<int64_t>(between(0, 1) * static_cast<double>(height - layout.live_bytes))};
    layouts.push_back(layout);
  }
  return layouts;
}

TEST_SUITE("unit") {
  TEST_CASE("least layout: nothing that is left out needs less") {
    std::mt19937 random(3);
    int layouts_seen = 0, counted = 0, placed = 0;
    for (int round = 0; round < 2000; ++round) {
      const std::vector<Known> layouts = random_layouts(random);
      const Found found = find_least(layouts, any_bytes);
      REQUIRE(found.layout);
      CHECK(layouts[*found.layout].finished <= least_of_all(layouts));
      CHECK(found.finished <= 4);
      layouts_seen += static_cast<int>(layouts.size());
      counted += found.counted, placed += found.placed;
    }
    CHECK(counted < layouts_seen * 3 / 4);
    CHECK(placed < layouts_seen / 2);
  }

  TEST_CASE("least layout: none that needs what is enough, and nothing is placed that does by its live bytes") {
    std::mt19937 random(7);
    for (int round = 0; round < 500; ++round) {
      const std::vector<Known> layouts = random_layouts(random);
      const LayoutNeed least = least_of_all(layouts);
      CHECK(find_least(layouts, least.bytes + 1).layout.has_value());
      const Found lower = find_least(layouts, least.bytes);
      if (lower.layout) CHECK(layouts[*lower.layout].finished.bytes < least.bytes);
      const auto by_live = [](const Known& a, const Known& b) { return a.live_bytes < b.live_bytes; };
      const int64_t live_bytes = std::min_element(layouts.begin(), layouts.end(), by_live)->live_bytes;
      CHECK(find_least(layouts, live_bytes).placed == 0);
    }
  }

  TEST_CASE("least layout: of equal ones the first, and of close ones the one that is lower when finished") {
    const Known equal{100'000, 100'000, {false, 100'000}, {false, 100'000}};
    CHECK(find_least({equal, equal}, any_bytes).layout == 0);
    const Known rough{100'000, 100'000, {false, 110'000}, {false, 110'000}},
        close{100'000, 100'000, {false, 113'000}, {false, 105'000}},
        far{100'000, 100'000, {false, 114'000}, {false, 101'000}};
    const Found found = find_least({rough, close, far}, any_bytes);
    CHECK(found.layout == 1);
    CHECK(found.finished == 2);
    const Known above_close{100'000, 106'000, {false, 113'200}, {false, 106'000}};
    CHECK(find_least({rough, close, above_close}, any_bytes).finished == 2);
    CHECK_FALSE(find_least({}, any_bytes).layout);
  }

  // The third and the fifth layout are placed beside each other, since the fourth cannot need least. One after the
  // other, the third would rule the fifth out.
  TEST_CASE("least layout: two are placed at once, with one between them that is ruled out by its live bytes") {
    const auto known = [](int64_t live_bytes, int64_t placed_bytes) {
      return Known{100'000, live_bytes, {false, placed_bytes}, {false, placed_bytes}};
    };
    const Found found = find_least({known(100'000, 110'000), known(100'000, 110'000), known(104'000, 104'200),
                                    known(111'000, 111'000), known(104'500, 105'000)},
                                   any_bytes);
    CHECK(found.layout == 2);
    CHECK(found.placed == 4);
  }
}

}  // namespace
}  // namespace plimsoll
