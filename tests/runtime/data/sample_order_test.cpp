#include "runtime/data/sample_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

using namespace plimsoll;

namespace {

std::vector<int64_t> epoch_of(int64_t samples, uint64_t seed, int64_t epoch) {
  const SampleOrder order(samples, seed, epoch);
  std::vector<int64_t> all;
  for (int64_t place = 0; place < samples; ++place) all.push_back(order.at(place));
  return all;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("sample order: every epoch has each sample once, in another order") {
    for (int64_t samples : {1, 2, 3, 5, 8, 100, 1000}) {
      const std::vector<int64_t> first = epoch_of(samples, 7, 0), second = epoch_of(samples, 7, 1);
      CHECK(std::set<int64_t>(first.begin(), first.end()).size() == static_cast<size_t>(samples));
      CHECK(*std::min_element(first.begin(), first.end()) == 0);
      CHECK(*std::max_element(first.begin(), first.end()) == samples - 1);
      CHECK(first == epoch_of(samples, 7, 0));
      if (samples >= 100) CHECK(first != second);
      if (samples >= 100) CHECK(first != epoch_of(samples, 8, 0));
    }
  }

  // Each of 10 samples comes first in 1,000 of 10,000 epochs; the deviation of such a count is 30.
  TEST_CASE("sample order: over the epochs every sample is equally often at a place") {
    for (int64_t place : {0, 4, 9}) {
      std::vector<int> counts(10);
      for (int64_t epoch = 0; epoch < 10000; ++epoch)
        ++counts[static_cast<size_t>(SampleOrder(10, 3, epoch).at(place))];
      for (int count : counts) {
        CHECK(count > 1000 - 5 * 30);
        CHECK(count < 1000 + 5 * 30);
      }
    }
  }

  TEST_CASE("sample order: what is held out is not trained with, and the seed decides what it is") {
    using Kind = SamplePart::Kind;
    const SamplePart training(50, 0.1, Kind::Training, 4), held_out(50, 0.1, Kind::HeldOut, 4);
    CHECK(training.samples() == 45);
    CHECK(held_out.samples() == 5);
    std::set<int64_t> all;
    for (int64_t i = 0; i < 45; ++i) all.insert(training.at(i));
    for (int64_t i = 0; i < 5; ++i) all.insert(held_out.at(i));
    CHECK(all.size() == 50);
    std::set<int64_t> other;
    for (int64_t i = 0; i < 5; ++i) other.insert(SamplePart(50, 0.1, Kind::HeldOut, 5).at(i));
    std::set<int64_t> same;
    for (int64_t i = 0; i < 5; ++i) same.insert(held_out.at(i));
    CHECK(same != other);
    CHECK(SamplePart(50, 0.001, Kind::HeldOut, 4).samples() == 1);
    CHECK(SamplePart(50, 0, Kind::HeldOut, 4).samples() == 0);
  }
}
