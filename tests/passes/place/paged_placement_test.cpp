#include "passes/place/paged_placement.h"
#include "ir/plan/windows.h"
#include "ir/support/align.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

// Layouts in pages against a check of all pairs, byte by byte.

namespace plimsoll {
namespace {

constexpr int64_t alignment = 64, page = 1024;
constexpr int tries = 20;

// The arena that the placement would be, so that its bytes are those of a plan.
Arena arena_of(const PagedPlacement& placement) {
  Arena arena;
  arena.bytes = placement.height_bytes;
  arena.page_bytes = page;
  int64_t offset = windows_begin;
  for (const std::vector<int64_t>& pages : placement.windows) {
    arena.windows.push_back({offset, pages});
    offset += static_cast<int64_t>(pages.size()) * page;
  }
  return arena;
}

int64_t peak_of(const std::vector<Interval>& intervals) {
  int64_t peak = 0;
  for (const Interval& at : intervals) {
    int64_t live = 0;
    for (const Interval& each : intervals)
      if (each.first <= at.first && at.first <= each.last) live += align_up(each.bytes, alignment);
    peak = std::max(peak, live);
  }
  return peak;
}

PagedPlacement placed(const std::vector<Interval>& intervals) {
  PagedPlacement placement = *place_in_pages(intervals, alignment, page, tries, 0.004);
  const Arena arena = arena_of(placement);
  REQUIRE(placement.offsets.size() == intervals.size());
  CHECK(placement.lower_bound_bytes == peak_of(intervals));
  CHECK(placement.height_bytes >= placement.lower_bound_bytes);
  size_t collisions = 0, outside = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const int64_t from = placement.offsets[i], to = from + intervals[i].bytes;
    CHECK(from % alignment == 0);
    int64_t shown = 0;
    for_each_run(arena, from, to, [&](int64_t begin, int64_t end) {
      shown += end - begin;
      outside += begin < 0 || end > arena.bytes;
    });
    CHECK(shown == intervals[i].bytes);
    for (size_t j = 0; j < i; ++j)
      collisions += intervals[i].first <= intervals[j].last && intervals[j].first <= intervals[i].last &&
                    share_bytes(arena, from, to, placement.offsets[j], placement.offsets[j] + intervals[j].bytes);
  }
  CHECK(collisions == 0);
  CHECK(outside == 0);
  return placement;
}

TEST_SUITE("unit") {
  // The two holes that short lives leave are half as long as what comes, and lie apart.
  TEST_CASE("paged placement: what no hole is long enough for lies in several") {
    const std::vector<Interval> intervals = {
        {2 * page, 0, 1}, {2 * page, 0, 3}, {2 * page, 0, 1}, {2 * page, 0, 3}, {4 * page, 2, 3}};
    const PagedPlacement placement = placed(intervals);
    CHECK(placement.height_bytes == 8 * page);
    REQUIRE(placement.windows.size() == 1);
    CHECK(placement.windows[0].size() == 4);
    CHECK(is_in_window(placement.offsets[4]));
  }

  // A buffer begins in the page that another ends in, so that pages which neither fills are full.
  TEST_CASE("paged placement: buffers that are no whole pages share them") {
    std::vector<Interval> intervals;
    for (int i = 0; i < 8; ++i) intervals.push_back({page * 9 / 4, 0, i % 2 == 0 ? 1 : 3});
    for (int i = 0; i < 4; ++i) intervals.push_back({page * 9 / 4, 2, 3});
    const PagedPlacement placement = placed(intervals);
    CHECK(placement.height_bytes == 18 * page);
  }

  TEST_CASE("paged placement: near what is alive at once, and the same each time") {
    std::mt19937 random(5);
    for (int round = 0; round < 12; ++round) {
      std::vector<Interval> intervals;
      const int32_t steps = 200;
      for (int i = 0; i < 400; ++i) {
        const auto first = static_cast<int32_t>(random() % steps);
        const auto life = static_cast<int32_t>(random() % (random() % 10 == 0 ? 150 : 12));
        const int64_t sizes[] = {static_cast<int64_t>(random() % 200) + 1, page * 9 / 8, page * 9 / 4, 5 * page,
                                 12 * page + static_cast<int64_t>(random() % page)};
        intervals.push_back({sizes[random() % std::size(sizes)], first, std::min(first + life, steps - 1)});
      }
      const PagedPlacement placement = placed(intervals);
      CHECK(static_cast<double>(placement.height_bytes) <= 1.03 * static_cast<double>(placement.lower_bound_bytes));
      CHECK(place_in_pages(intervals, alignment, page, tries, 0.004)->offsets == placement.offsets);
      if (const auto lower = place_in_pages(intervals, alignment, page, tries, 0.004, placement.height_bytes))
        CHECK(lower->height_bytes < placement.height_bytes);
    }
  }

  TEST_CASE("paged placement: nothing, and less than a page") {
    CHECK(placed({}).height_bytes == 0);
    CHECK(placed({{1, 0, 0}}).height_bytes == alignment);
    CHECK(placed({{100, 0, 2}, {300, 1, 1}}).height_bytes == 448);
  }
}

}  // namespace
}  // namespace plimsoll
