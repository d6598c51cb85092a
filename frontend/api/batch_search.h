#pragma once

// Chooses which batches to try to find the largest one that fits. Each try is expensive, so there are few.

#include <cstdint>
#include <optional>
#include <vector>

namespace plimsoll {

// Memory grows about linearly with the batch, so a line through the refused batches estimates the largest that fits.
// After a poor estimate the search halves the open interval instead. Memory may also fall a little from one batch to
// the next: the result is a batch that fits and whose successor was refused.
class BatchSearch {
 public:
  std::optional<int64_t> next() const;  // none when the search is over
  void fits(int64_t batch);
  void refused(int64_t batch, double needed_share);  // bytes needed over the budget, above 1

  static constexpr int64_t max_tried = int64_t{1} << 30;

  int64_t largest() const { return fits_; }  // the largest tried batch that fits; 0 if none does

 private:
  struct Refused {
    int64_t batch;
    double needed_share;
  };

  int64_t open() const { return refused_.empty() ? max_tried : refused_.back().batch - fits_ - 1; }
  int64_t estimate() const;

  int64_t fits_ = 0;
  std::vector<Refused> refused_;  // in decreasing order
  bool was_slow_ = false;         // the last try left more than half of the interval open
};

}  // namespace plimsoll
