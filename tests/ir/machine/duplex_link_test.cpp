#include "ir/machine/duplex_link.h"

#include <doctest/doctest.h>

#include <random>

// Compares copies in two directions with times computed by hand, and with the lower bound.

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

TEST_CASE("copy link: a direction that does not meet the other takes its time alone") {
  DuplexLink link;
  link.restart({0.5, 0.5});
  CHECK(link.issue(Engine::ToHost, 30, 0) == 0);
  CHECK(link.issue(Engine::ToHost, 5, 10) == 1);
  CHECK(link.issue(Engine::ToDevice, 7, 40) == 0);
  CHECK(link.finish_us(Engine::ToHost, 0) == 30);
  CHECK(link.start_us(Engine::ToHost, 1) == 30);
  CHECK(link.finish_us(Engine::ToHost, 1) == 35);
  CHECK(link.finish_us(Engine::ToDevice, 0) == 47);
  CHECK(link.through_us() == 47);
}

TEST_CASE("copy link: copies that meet slow each other down while they do") {
  DuplexLink link;
  link.restart({0.5, 0.8});
  // A copy of 30 us to the host starts at 0. One of 20 us to the device starts at 10 and takes 20 / 0.8 = 25 while both
  // run, until 35. By then the first has done 10 + 25 * 0.5 = 22.5, and it does the other 7.5 alone, until 42.5.
  link.issue(Engine::ToHost, 30, 0);
  link.issue(Engine::ToDevice, 20, 10);
  CHECK(link.finish_us(Engine::ToDevice, 0) == doctest::Approx(35));
  CHECK(link.finish_us(Engine::ToHost, 0) == doctest::Approx(42.5));
  // Two copies to the device follow each other without a gap for the copy to the host. All start from 50 on. The one to
  // the host ends at 50 + 10 / 0.5 = 70; each of the two takes 8 / 0.8 = 10, so the second ends at 70 as well.
  link.issue(Engine::ToHost, 10, 50);
  link.issue(Engine::ToDevice, 8, 50);
  link.issue(Engine::ToDevice, 8, 50);
  CHECK(link.finish_us(Engine::ToHost, 1) == doctest::Approx(70));
  CHECK(link.start_us(Engine::ToDevice, 2) == doctest::Approx(60));
  CHECK(link.through_us() == doctest::Approx(70));
}

TEST_CASE("copy link: both ways take at least what side by side takes, or one after the other") {
  CHECK(min_copying_us(30, 20, {1, 1}) == 30);
  CHECK(min_copying_us(46, 46, {0.5, 0.5}) == 92);
  CHECK(min_copying_us(55, 55, {0.8, 0.8}) == doctest::Approx(68.75));
  // 20 us to the device take 25 while both run. The other direction does 20 of its 30 in that time and 10 alone.
  CHECK(min_copying_us(30, 20, {0.8, 0.8}) == doctest::Approx(35));
  CHECK(min_copying_us(30, 20, {0.25, 0.5}) == 50);
}

TEST_CASE("copy link: no order of copies is through before the least both ways take") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    DuplexShares shares{(1 + random() % 10) / 10.0, (1 + random() % 10) / 10.0};
    DuplexLink link;
    link.restart(shares);
    double sums[2] = {}, now = 0;
    for (int copy = 0; copy < 12; ++copy) {
      const bool to_device = random() % 2 == 0;
      const double us = 1 + static_cast<double>(random() % 9);
      if (random() % 2 == 0) now += static_cast<double>(random() % 6);
      link.issue(to_device ? Engine::ToDevice : Engine::ToHost, us, now);
      sums[to_device] += us;
    }
    const double through = link.through_us();
    CHECK(through >= min_copying_us(sums[0], sums[1], shares) - 1e-9);
    CHECK(through <= now + sums[0] / shares.to_host + sums[1] / shares.to_device + 1e-9);
  }
}

TEST_SUITE_END();

}  // namespace plimsoll
