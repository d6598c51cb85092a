#include "passes/remat/memory_profile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

// A profile that is changed many times between two questions answers as a list of all points does.

namespace plimsoll::remat {
namespace {

// Live bytes by point, with everything recounted for each question.
struct PlainProfile {
  std::map<ProgramPoint, int64_t> live;

  void add(ProgramPoint first, ProgramPoint last, int64_t bytes) {
    for (auto& [at, now] : live)
      if (first <= at && at <= last) now += bytes;
  }

  std::map<ProgramPoint, int64_t> above(int64_t limit) const {
    std::map<ProgramPoint, int64_t> result;
    for (const auto& [at, now] : live)
      if (now > limit) result.emplace(at, now);
    return result;
  }

  ProgramPoint peak_point() const {
    return std::max_element(live.begin(), live.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
  }
};

void check_equal(const MemoryProfile& profile, const PlainProfile& plain, int64_t limit) {
  CHECK(profile.peak_point() == plain.peak_point());
  CHECK(profile.peak() == plain.live.at(plain.peak_point()));
  std::map<ProgramPoint, int64_t> above;
  profile.each_above(limit, [&](ProgramPoint at, int64_t live) { return above.emplace(at, live).second; });
  CHECK(above == plain.above(limit));
  int64_t excess = 0;
  for (const auto& [at, live] : above) excess += live - limit;
  CHECK(profile.excess(limit) == excess);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("memory profile: points come, go and grow between questions") {
    std::mt19937 random(5);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    for (int32_t positions : {1, 2, 7, 64, 100}) {
      MemoryProfile profile(positions);
      PlainProfile plain;
      for (int32_t s = 0; s < positions; ++s) plain.live[{s, s}] = 0;
      for (int round = 0; round < 400; ++round) {
        const ProgramPoint at{below(positions), below(2 * positions)};
        if (const int32_t kind = below(4); kind == 0 && !profile.has(at)) {
          plain.live[at] = below(50);
          profile.insert(at, plain.live[at]);
        } else if (kind == 1 && profile.has(at) && at.position() != at.op()) {
          plain.live.erase(at);
          profile.erase(at);
        } else {
          const ProgramPoint last{at.position() + below(positions - at.position()), below(2 * positions)};
          const int64_t bytes = below(21) - 10;
          plain.add(at, last, bytes);
          profile.add(at, last, bytes);
        }
        CHECK(profile.has(at) == (plain.live.count(at) > 0));
        if (profile.has(at)) CHECK(profile.live(at) == plain.live[at]);
        if (below(5) == 0) check_equal(profile, plain, below(40));
      }
    }
  }
}

}  // namespace plimsoll::remat
