#include "runtime/data/batch_order.h"

#include <doctest/doctest.h>

#include <set>

using namespace plimsoll;

namespace {

// Sample i has length 1 + i % 10.
class Lengths : public Dataset {
 public:
  explicit Lengths(int64_t samples) : samples_(samples) {}
  int64_t samples() const override { return samples_; }
  llvm::ArrayRef<Field> fields() const override { return {}; }
  std::string where() const override { return ""; }
  Status read(int64_t, size_t, const TensorView&, const RandomStream&, ReadBuffers&) const override {
    return Status::success();
  }
  std::optional<int64_t> least_length(int64_t sample) const override { return 1 + sample % 10; }

 private:
  int64_t samples_;
};

constexpr int64_t rows = 4;

BatchOrder order_of(int64_t samples, LastBatch last, bool shuffle = true) {
  DataOptions options;
  options.seed = 5;
  options.shuffle = shuffle;
  options.last_batch = last;
  options.shorter = {{2, {}}, {5, {}}};
  return {Lengths(samples), SamplePart(samples, 0, SamplePart::Kind::Training, 5), rows, options};
}

constexpr int64_t lengths[] = {2, 5, 10};

}  // namespace

TEST_SUITE("unit") {
  // Of 53 samples 12 are at most 2 long, 16 more at most 5 (3, 4 and 5), and 25 longer: 3, 4 and 6 batches, and one
  // left.
  TEST_CASE("lengths: an epoch has each sample once, in batches that are as short as their samples allow") {
    const BatchOrder order = order_of(53, LastBatch::Fill);
    REQUIRE(order.batches_per_epoch() == 14);
    std::vector<size_t> first_epoch;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      std::vector<size_t> of_batches;
      for (int64_t batch = 14 * epoch; batch < 14 * (epoch + 1); ++batch) {
        of_batches.push_back(order.length_of(batch));
        CHECK(order.samples_in(batch) == (batch % 14 == 13 ? 1 : rows));
        for (int64_t row = 0; row < order.samples_in(batch); ++row) {
          const int64_t sample = order.sample(batch, row);
          CHECK(1 + sample % 10 <= lengths[of_batches.back()]);
          CHECK(seen.insert(sample).second);
        }
      }
      CHECK(seen.size() == 53);
      CHECK(llvm::count(of_batches, 0U) == 3);
      CHECK(llvm::count(of_batches, 1U) == 4);
      if (epoch == 0) first_epoch = of_batches;
      CHECK((epoch == 0) == (of_batches == first_epoch));
    }
  }

  // Of 27 samples 6, 9 and 12: what is left of one length goes to the next, and 3 are left over in the end.
  TEST_CASE("lengths: samples that fill no batch of their length go to the next longer one") {
    const BatchOrder order = order_of(27, LastBatch::Drop, false);
    REQUIRE(order.batches_per_epoch() == 6);
    const size_t expected[] = {0, 1, 1, 2, 2, 2};
    std::set<int64_t> seen;
    for (int64_t batch = 0; batch < 6; ++batch) {
      CHECK(order.length_of(batch) == expected[batch]);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t sample = order.sample(batch, row);
        CHECK(1 + sample % 10 <= lengths[expected[batch]]);
        CHECK(seen.insert(sample).second);
      }
    }
  }
}
