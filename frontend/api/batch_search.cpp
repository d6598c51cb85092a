#include "frontend/api/batch_search.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {

std::optional<int64_t> BatchSearch::next() const {
  if (open() < 1 || fits_ >= max_tried) return std::nullopt;
  if (refused_.empty()) return std::min(std::max<int64_t>(1, 4 * fits_), max_tried);
  const int64_t largest_open = refused_.back().batch - 1;
  if (was_slow_) return fits_ + (open() + 1) / 2;
  return std::clamp(estimate(), fits_ + 1, largest_open);
}

void BatchSearch::fits(int64_t batch) {
  const int64_t open_before = open();
  fits_ = batch;
  was_slow_ = !refused_.empty() && open() > open_before / 2;
}

void BatchSearch::refused(int64_t batch, double needed_share) {
  const int64_t open_before = open();
  refused_.push_back({batch, needed_share});
  was_slow_ = open() > open_before / 2;
}

// Returns where a line meets the budget. It goes through the two smallest refused batches, or one of them and zero.
int64_t BatchSearch::estimate() const {
  const Refused& near = refused_.back();
  const Refused far = refused_.size() > 1 ? refused_[refused_.size() - 2] : Refused{0, 0};
  const double rise = (near.needed_share - far.needed_share) / static_cast<double>(near.batch - far.batch);
  if (rise <= 0) return fits_ + (open() + 1) / 2;
  const double batch = std::floor(static_cast<double>(near.batch) + (1 - near.needed_share) / rise);
  return batch > 0 ? static_cast<int64_t>(batch) : 0;
}

}  // namespace plimsoll
