#include "passes/place/flexible_placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

// Lives that give way to the layout, against arithmetic done by hand and a check of all pairs.

namespace plimsoll {
namespace {

constexpr int64_t steps = 10'000'000;

bool contains(const Life& outer, const Life& inner) { return outer.first <= inner.first && inner.last <= outer.last; }

// Everything a placement promises, pair by pair.
void check_placement(const std::vector<FlexibleInterval>& intervals, int64_t capacity, const FlexiblePlacement& p) {
  size_t collisions = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    CHECK(p.offsets[i] >= 0);
    CHECK(p.offsets[i] + intervals[i].bytes <= capacity);
    CHECK(contains(p.lives[i], intervals[i].core));
    CHECK(contains(intervals[i].wanted, p.lives[i]));
    CHECK(contains(p.free_lives[i], p.lives[i]));
    CHECK(contains(intervals[i].allowed, p.free_lives[i]));
    for (size_t j = 0; j < i; ++j)
      collisions += p.free_lives[i].first <= p.free_lives[j].last && p.free_lives[j].first <= p.free_lives[i].last &&
                    p.offsets[i] < p.offsets[j] + intervals[j].bytes &&
                    p.offsets[j] < p.offsets[i] + intervals[i].bytes;
  }
  CHECK(collisions == 0);
  // A life that ends ahead of what it may be meets another there.
  const auto is_taken = [&](size_t i, int32_t step) {
    for (size_t j = 0; j < intervals.size(); ++j)
      if (j != i && p.free_lives[j].first <= step && step <= p.free_lives[j].last &&
          p.offsets[i] < p.offsets[j] + intervals[j].bytes && p.offsets[j] < p.offsets[i] + intervals[i].bytes)
        return true;
    return false;
  };
  size_t too_short = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Life &life = p.free_lives[i], &most = intervals[i].allowed;
    too_short += (most.first < life.first && !is_taken(i, life.first - 1)) ||
                 (life.last < most.last && !is_taken(i, life.last + 1));
  }
  CHECK(too_short == 0);
}

FlexibleInterval fixed(int64_t bytes, Life life) { return {bytes, life, life, life}; }

// Copies that fill buffers before they are used: what comes is wanted some time ahead of its use, and allowed earlier.
std::vector<FlexibleInterval> streamed(std::mt19937& random, int count, int64_t most_alive) {
  const int64_t sizes[] = {32, 64, 86, 172};
  std::vector<FlexibleInterval> intervals;
  std::vector<int64_t> live(200, 0);
  for (int i = 0; i < 20 * count && static_cast<int>(intervals.size()) < count; ++i) {
    const auto first = static_cast<int32_t>(random() % 190), use = first + static_cast<int32_t>(random() % 8);
    const Life wanted{first, std::min<int32_t>(199, use + static_cast<int32_t>(random() % 20))};
    const int64_t bytes = sizes[random() % std::size(sizes)];
    if (std::any_of(live.begin() + wanted.first, live.begin() + wanted.last + 1,
                    [&](int64_t at) { return at + bytes > most_alive; }))
      continue;
    for (int32_t at = wanted.first; at <= wanted.last; ++at) live[at] += bytes;
    intervals.push_back({bytes, {use, wanted.last}, wanted, {std::max(0, wanted.first - 5), wanted.last}});
  }
  return intervals;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("flexible placement: a life begins when there is room") {
    // Steps 3 and 4 have 3 + 2 bytes of the others and no room for 3 more below 6; from step 5 on there are 4. The
    // life that begins at 6 at the latest gets step 5, and not the steps before that it wants too.
    const std::vector<FlexibleInterval> intervals = {fixed(3, {0, 4}), fixed(2, {3, 9}), {3, {6, 9}, {2, 9}, {0, 12}}};
    FlexiblePlacer placer(intervals, {}, 6);
    REQUIRE(placer.place(steps));
    const FlexiblePlacement placed = placer.placement();
    check_placement(intervals, 6, placed);
    CHECK(placed.lives[2].first == 5);
    CHECK(placed.lives[2].last == 9);
    CHECK(placed.free_lives[2].last == 12);

    placer.insist_on(2);
    CHECK_FALSE(placer.place(steps));
  }

  TEST_CASE("flexible placement: what is given up finds nothing, and goes on when it is not") {
    FlexiblePlacer placer({fixed(3, {0, 4}), fixed(2, {3, 9})}, {}, 6);
    CHECK_FALSE(placer.place(steps, [] { return true; }));
    CHECK(placer.place(steps));
  }

  // A small buffer that lies at the bottom, in bytes 0 and 1, is in the way of a longer life, in stretches of time that
  // this one did not meet before.
  TEST_CASE("flexible placement: a longer life ends at what lies at the bottom") {
    const std::vector<FlexibleInterval> intervals = {
        fixed(2, {0, 69}), fixed(3998, {0, 69}), {4000, {150, 160}, {150, 160}, {10, 200}}};
    FlexiblePlacer placer(intervals, {}, 4000);
    REQUIRE(placer.place(steps));
    const FlexiblePlacement placed = placer.placement();
    check_placement(intervals, 4000, placed);
    CHECK(placed.free_lives[2].first == 70);
    CHECK(placed.free_lives[2].last == 200);
  }

  TEST_CASE("flexible placement: pressed below a lower capacity") {
    // 3 + 2 bytes at steps 3 and 4 fill 5, and so do 2 + 3 from step 6 on, where the third begins at the latest.
    const std::vector<FlexibleInterval> intervals = {fixed(3, {0, 4}), fixed(2, {3, 9}), {3, {6, 9}, {2, 9}, {0, 12}}};
    FlexiblePlacer placer(intervals, {}, 8);
    REQUIRE(placer.place(steps));
    CHECK(placer.placement().lives[2].first == 2);
    placer.press(5, {{0, 4}, {3, 9}, {2, 9}});
    REQUIRE(placer.place(steps));
    check_placement(intervals, 5, placer.placement());
    CHECK(placer.placement().lives[2].first == 5);
  }

  // Below 9, the third finds 3 bytes above the second and 1 below it, so that the second has to move.
  TEST_CASE("flexible placement: starts from another layout, and what is above the capacity finds a place") {
    const std::vector<FlexibleInterval> intervals = {fixed(2, {0, 4}), fixed(3, {2, 8}), fixed(4, {3, 9})};
    const int64_t offsets[] = {0, 3, 6};
    FlexiblePlacer placer(intervals, {}, 9);
    placer.start_from(offsets);
    REQUIRE(placer.place(steps));
    check_placement(intervals, 9, placer.placement());
    // Where all are below the capacity, all stay.
    FlexiblePlacer same(intervals, {}, 10);
    same.start_from(offsets);
    REQUIRE(same.place(steps));
    for (size_t i = 0; i < intervals.size(); ++i) CHECK(same.offset(i) == offsets[i]);
  }

  // A small buffer with a long life lies at the bottom of an empty arena, and waits where the other layout has it above
  // the capacity.
  TEST_CASE("flexible placement: what waits has no place, whatever it had before another layout") {
    const std::vector<FlexibleInterval> intervals = {fixed(2, {0, 69}), fixed(3000, {0, 9})};
    const int64_t offsets[] = {4000, 0};
    FlexiblePlacer placer(intervals, {}, 4000);
    REQUIRE(placer.offset(0) == 0);
    placer.start_from(offsets);
    CHECK(placer.offset(0) == -1);
    REQUIRE(placer.place(steps));
    check_placement(intervals, 4000, placer.placement());
  }

  // 45 + 34 + 21 and 34 + 27 + 39 are 100 of 102 bytes, so the 34 that live throughout must lie at an end. From the
  // bottom on, the longest first, they come to lie in the middle.
  TEST_CASE("flexible placement: what takes the middle goes to an end in time") {
    const std::vector<FlexibleInterval> intervals = {fixed(45, {0, 29}), fixed(34, {0, 31}), fixed(21, {0, 29}),
                                                     fixed(27, {30, 31}), fixed(39, {30, 31})};
    FlexiblePlacer placer(intervals, {}, 102);
    REQUIRE(placer.place(steps));
    const FlexiblePlacement placed = placer.placement();
    check_placement(intervals, 102, placed);
    CHECK((placed.offsets[1] <= 2 || placed.offsets[1] >= 66));
  }

  // Of 4,000 bytes a small buffer takes at most 2. Those that live for 64 steps or more lie below all others, the
  // longest at 0, and the widest fits above them. One that may live longer lies where there is room.
  TEST_CASE("flexible placement: small buffers with long lives lie at the bottom and stay there") {
    const std::vector<FlexibleInterval> intervals = {fixed(3996, {20, 30}),
                                                     fixed(1, {10, 89}),
                                                     fixed(2, {0, 99}),
                                                     fixed(3000, {40, 50}),
                                                     {1, {60, 130}, {60, 130}, {55, 130}},
                                                     fixed(1, {20, 30})};
    FlexiblePlacer placer(intervals, {}, 4000);
    REQUIRE(placer.place(steps));
    CHECK(placer.offset(2) == 0);
    CHECK(placer.offset(1) == 2);
    CHECK(placer.offset(0) == 3);
    CHECK(placer.offset(4) > 2);
    check_placement(intervals, 4000, placer.placement());

    std::vector<Life> wanted;
    for (const FlexibleInterval& each : intervals) wanted.push_back(each.wanted);
    placer.press(4000, wanted);
    placer.insist_on(2);
    REQUIRE(placer.place(steps));
    CHECK(placer.offset(2) == 0);
    check_placement(intervals, 4000, placer.placement());
  }

  // Both small ones would lie at the bottom, the second at 2. The large one has 4,000 bytes with it at step 150, but
  // 2 of them would be below the second, where the first has ended.
  TEST_CASE("flexible placement: nothing stays at the bottom that leaves too little above it") {
    const std::vector<FlexibleInterval> intervals = {fixed(2, {0, 100}), fixed(2, {50, 200}), fixed(3998, {140, 160})};
    FlexiblePlacer placer(intervals, {}, 4000);
    REQUIRE(placer.place(steps));
    check_placement(intervals, 4000, placer.placement());
  }

  // The third would lie on the first two, 4 bytes high, and leave them free below it once they have ended. There are no
  // more than 3 beside the last.
  TEST_CASE("flexible placement: what would leave much free below it does not stay at the bottom") {
    const std::vector<FlexibleInterval> intervals = {fixed(2, {0, 99}), fixed(2, {0, 99}), fixed(2, {64, 159}),
                                                     fixed(3997, {115, 150})};
    FlexiblePlacer placer(intervals, {}, 4000);
    REQUIRE(placer.place(steps));
    CHECK(placer.offset(0) == 0);
    CHECK(placer.offset(1) == 2);
    check_placement(intervals, 4000, placer.placement());
  }

  TEST_CASE("flexible placement: the work of placing each once grows with the pairs that are alive together") {
    const auto steps_for = [](std::vector<FlexibleInterval> intervals) {
      return FlexiblePlacer(std::move(intervals), {}, 4000).steps_to_place_each();
    };
    CHECK(steps_for({fixed(3, {0, 4}), fixed(3, {5, 9})}) == 0);
    const int64_t one_pair = steps_for({fixed(3, {0, 4}), fixed(3, {4, 9})});
    CHECK(one_pair > 0);
    // The second meets the first and the third, which meet no other; all three meet the fourth.
    CHECK(steps_for({fixed(3, {0, 4}), fixed(3, {4, 9}), fixed(3, {9, 12}), fixed(3, {0, 20})}) == 5 * one_pair);
    // What stays at the bottom has its place.
    CHECK(steps_for({fixed(3, {0, 4}), fixed(3, {4, 9}), fixed(1, {0, 99})}) == one_pair);
  }

  TEST_CASE(
      "flexible placement: goes on from where its work ended, and lives have lower prices as long as any give way") {
    const std::vector<FlexibleInterval> intervals = {fixed(3, {0, 4}), fixed(2, {3, 9}), {3, {6, 9}, {2, 9}, {0, 12}}};
    FlexiblePlacer placer(intervals, {}, 6);
    CHECK_FALSE(placer.place(1));
    CHECK(placer.lower_price());
    CHECK(placer.place(steps));
    check_placement(intervals, 6, placer.placement());
    while (placer.lower_price()) CHECK(placer.place(steps));
    CHECK_FALSE(FlexiblePlacer({fixed(3, {0, 4})}, {}, 6).lower_price());
  }

  TEST_CASE("flexible placement: other starts find what one does not") {
    std::mt19937 random(5);
    constexpr int64_t capacity = 620, few_steps = 300'000;
    int by_one = 0, by_some = 0;
    for (int round = 0; round < 20; ++round) {
      const std::vector<FlexibleInterval> intervals = streamed(random, 150, 600);
      for (uint64_t start = 0; start < 6; ++start) {
        FlexiblePlacer placer(intervals, {}, capacity);
        if (start > 0) placer.vary(start);
        if (!placer.place(few_steps)) continue;
        check_placement(intervals, capacity, placer.placement());
        by_one += start == 0;
        ++by_some;
        break;
      }
    }
    CHECK(by_one > 5);
    CHECK(by_some > 3 * by_one / 2);
  }

  TEST_CASE("flexible placement: lives within a capacity, and the same each time") {
    std::mt19937 random(3);
    int shorter = 0, found = 0;
    for (int round = 0; round < 20; ++round) {
      const int64_t capacity = 1000;
      const std::vector<FlexibleInterval> intervals = streamed(random, 100 + 20 * round, capacity);
      FlexiblePlacer placer(intervals, {}, capacity);
      if (!placer.place(steps)) continue;
      ++found;
      const FlexiblePlacement placed = placer.placement();
      check_placement(intervals, capacity, placed);
      for (size_t i = 0; i < intervals.size(); ++i) shorter += placed.lives[i].first > intervals[i].wanted.first;

      FlexiblePlacer again(intervals, {}, capacity);
      CHECK(again.place(steps));
      CHECK(again.placement().offsets == placed.offsets);

      placer.insist_on(0);
      if (!placer.place(steps)) continue;
      check_placement(intervals, capacity, placer.placement());
      CHECK(placer.placement().lives[0].first == intervals[0].wanted.first);
    }
    CHECK(found > 15);
    CHECK(shorter > 20);
  }
}

}  // namespace plimsoll
