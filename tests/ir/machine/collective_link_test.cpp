#include "ir/machine/engine_clock.h"

#include <doctest/doctest.h>

// Collectives beside computing, with times computed by hand.

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

constexpr CollectiveShares half_speed{0.5, 0.8, 4};

TEST_CASE("collectives: alone they take their time, beside computing both are slower") {
  CollectiveLink link;
  link.restart(half_speed);
  // 10 us of work at half the speed end after 20 us, in which computing does 16 of its 40 us; 24 are left.
  CHECK(link.issue(10, false, 100) == 0);
  CHECK(link.compute(40, 100) == doctest::Approx(20 + 24));
  CHECK(link.start_us(0) == 100);
  CHECK(link.finish_us(0) == doctest::Approx(120));
  // Computing waits: nothing slows the collective down.
  CHECK(link.issue(10, false, 200) == 1);
  CHECK(link.left_us(1) == 10);
  link.idle(10, 200);
  CHECK(link.left_us(1) == 0);
  CHECK(link.finish_us(1) == 210);
  // 8 us of computing take 10 us, in which 5 us of the work are done.
  link.issue(10, false, 300);
  CHECK(link.compute(8, 300) == doctest::Approx(10));
  CHECK(link.left_us(2) == doctest::Approx(5));
}

TEST_CASE("collectives: they follow each other, and one that joins a launch saves its own") {
  CollectiveLink link;
  link.restart(half_speed);
  link.issue(10, false, 0);
  link.issue(10, true, 0);
  link.issue(3, true, 0);  // shorter than a launch: it costs nothing more
  CHECK(link.left_us(2) == 16);
  CHECK(link.left_us(0) == 16);  // those of one launch are through together
  link.idle(12, 0);
  CHECK(link.left_us(0) == 4);
  link.idle(20, 12);
  CHECK(link.launch_finish_us(0) == 16);
  CHECK(link.start_us(1) == 10);
  CHECK(link.finish_us(1) == 16);
  CHECK(link.finish_us(2) == 16);
}

TEST_CASE("collectives: a launch with enough work takes no more, so that nothing waits for what comes behind it") {
  CollectiveLink link;
  link.restart(half_speed);
  link.issue(CollectiveLaunch::max_us - 1, false, 0);
  link.issue(104, true, 0);
  link.issue(20, true, 0);  // of a launch of its own
  CHECK(link.left_us(0) == CollectiveLaunch::max_us + 99);
  CHECK(link.left_us(2) == link.left_us(0) + 20);
}

TEST_CASE("collectives: compute waits for one while a copy goes on, and for a copy while a collective does") {
  EngineClock clock;
  clock.restart({1, 1}, {1, 0.1}, half_speed);
  const size_t copy = clock.issue(Engine::ToHost, 20);  // computing loses 1 + 0.1 * 20 us
  CHECK(clock.now_us() == 3);
  const size_t sum = clock.issue_collective(30, false);
  clock.compute(8);  // takes 10 us, until 13; 5 us of the sum are done
  CHECK(clock.now_us() == doctest::Approx(13));
  CHECK_FALSE(clock.is_through(sum));
  CHECK(clock.wait_for(Engine::ToHost, copy) == doctest::Approx(7));  // until 20; 12 us of the sum are done
  CHECK(clock.wait_for(Engine::Ranks, sum) == doctest::Approx(18));
  CHECK(clock.is_through(sum));
  CHECK(clock.finish_us(Engine::Ranks, sum) == doctest::Approx(38));
  CHECK(clock.through_us() == doctest::Approx(38));
}

TEST_CASE("collectives: no way to place computing beside them costs less than the bound") {
  // 10 us of work lose 0.2 / 0.5 of it to computing beside them; the launch of 4 us may be shared.
  CHECK(half_speed.min_cost_us(14) == doctest::Approx(4));
  CHECK(half_speed.min_cost_us(2) == 0);
  // Where computing beside them is slower than waiting, waiting is the bound.
  CHECK(CollectiveShares{0.5, 0.2, 0}.min_cost_us(10) == 10);
}

TEST_SUITE_END();

}  // namespace plimsoll
