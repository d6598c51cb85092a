#include "frontend/api/batch_search.h"

#include "doctest/doctest.h"

#include <functional>

using plimsoll::BatchSearch;

namespace {

struct Found {
  int64_t batch;
  int tries;
};

// `needed_share` returns the bytes that a batch needs, over the budget.
Found largest_batch(const std::function<double(int64_t)>& needed_share) {
  BatchSearch search;
  int tries = 0;
  for (; std::optional<int64_t> batch = search.next(); ++tries) {
    if (double share = needed_share(*batch); share <= 1)
      search.fits(*batch);
    else
      search.refused(*batch, share);
  }
  return {search.largest(), tries};
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("largest batch: where the need is a line, few tries find what a scan finds") {
  for (double fixed : {0.01, 0.3, 0.9})
    for (int64_t largest = 1; largest <= 3000; largest += 1 + largest / 7) {
      const double each = (1 - fixed) / (static_cast<double>(largest) + 0.5);
      Found found = largest_batch([&](int64_t batch) { return fixed + each * static_cast<double>(batch); });
      CHECK(found.batch == largest);
      CHECK(found.tries <= 13);
    }
}

// One batch may waste more bytes than the next, and small batches need equal bytes.
TEST_CASE("largest batch: it fits and the next does not, however rough the line") {
  for (int64_t largest : {3, 17, 100, 350, 4984}) {
    auto needs = [&](int64_t batch) {
      const double rough = 0.03 * static_cast<double>(batch * 7919 % 101) / 101;
      return std::max(0.7, static_cast<double>(batch) / static_cast<double>(largest)) + rough;
    };
    Found found = largest_batch(needs);
    CHECK(needs(found.batch) <= 1);
    CHECK(needs(found.batch + 1) > 1);
    CHECK(found.tries <= 18);
  }
}

TEST_CASE("largest batch: a refusal for want of something else than device memory halves what is left") {
  Found found = largest_batch([](int64_t batch) { return batch <= 1000 ? 0.9 : 1.0000001; });
  CHECK(found.batch == 1000);
  CHECK(found.tries <= 6 + 13);
  CHECK(largest_batch([](int64_t) { return 2.0; }).batch == 0);
}

TEST_SUITE_END();
