#pragma once

// Which batches to try on the way to the largest one that fits, each try being dear.

#include <cstdint>
#include <optional>
#include <vector>

namespace plimsoll {

// What is needed grows about linearly with the batch. So a batch that was refused says about how large one may be, two
// of them better, and where they mislead, half of what is open goes. What is needed may go up and down a little: the
// answer is a batch that fits and is followed by one that was refused.
class BatchSearch {
 public:
  std::optional<int64_t> next() const;  // none: the search is over
  void fits(int64_t batch);
  void refused(int64_t batch, double needed_share);  // what it needs, in budgets

  int64_t largest() const { return fits_; }  // that fits, of those tried; 0: none

 private:
  struct Refused {
    int64_t batch;
    double needed_share;
  };

  int64_t open() const { return refused_.empty() ? max_tried : refused_.back().batch - fits_ - 1; }
  int64_t estimate() const;

  static constexpr int64_t max_tried = int64_t{1} << 30;
  int64_t fits_ = 0;
  std::vector<Refused> refused_;  // smaller and smaller
  bool was_slow_ = false;         // the last try left more than half of what was open
};

}  // namespace plimsoll
