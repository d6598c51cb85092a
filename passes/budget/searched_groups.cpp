#include "passes/budget/searched_groups.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

SearchedGroups::SearchedGroups(RematProblem problem, const RematOptions& options, int64_t highest_bytes,
                               std::shared_ptr<SearchedGroups> starts)
    : groups_(std::move(problem), options),
      highest_bytes_(highest_bytes),
      starts_(std::move(starts)),
      found_(groups_.count()) {}

const std::vector<RematPlan>& SearchedGroups::plans(size_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return found(last_up_to(group));
}

const std::vector<RematPlan>& SearchedGroups::found(size_t group) {
  std::optional<std::vector<RematPlan>>& found = found_[group];
  if (!found) found = search(group, highest_bytes_, CloseLevels::No);
  return *found;
}

size_t SearchedGroups::last_up_to(size_t group) {
  while (group > 0 && !groups_.reaches(group)) --group;
  return group;
}

std::vector<RematPlan> SearchedGroups::search(size_t group, int64_t highest_bytes, CloseLevels close) {
  const bool close_levels = close == CloseLevels::Yes;
  if (!starts_) return groups_.search(group, highest_bytes, close_levels);
  return groups_.search(group, highest_bytes, close_levels, starts_->plans(group));
}

// Levels fall from group to group, so the last group that has any has the lowest.
std::vector<std::vector<RematPlan>> SearchedGroups::close_plans() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t group = 0;
  while (groups_.reaches(group)) ++group;
  std::optional<int64_t> close_bytes;
  std::vector<std::vector<RematPlan>> close;
  while (group-- > 0 && (!close_bytes || groups_.lowest_bytes(group) <= *close_bytes)) {
    const bool has_close = highest_bytes(group) > highest_bytes_;
    if (!has_close && close_bytes) continue;
    std::vector<RematPlan> plans = has_close ? search(group, close_bytes.value_or(highest_bytes_),
                                                      close_bytes ? CloseLevels::No : CloseLevels::Yes)
                                             : found(group);
    if (plans.empty()) continue;
    if (!close_bytes) close_bytes = close_to(plans.back().level_bytes);
    if (has_close) close.push_back(std::move(plans));
  }
  std::reverse(close.begin(), close.end());
  return close;
}

}  // namespace plimsoll
