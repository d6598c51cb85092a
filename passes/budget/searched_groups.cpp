#include "passes/budget/searched_groups.h"

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
  group = last_up_to(group);
  std::optional<std::vector<RematPlan>>& found = found_[group];
  if (!found) found = search(group, highest_bytes_);
  return *found;
}

size_t SearchedGroups::last_up_to(size_t group) {
  while (group > 0 && !groups_.reaches(group)) --group;
  return group;
}

std::vector<RematPlan> SearchedGroups::search(size_t group, int64_t highest_bytes) {
  if (!starts_) return groups_.search(group, highest_bytes, false);
  return groups_.search(group, highest_bytes, false, starts_->plans(group));
}

std::vector<std::vector<RematPlan>> SearchedGroups::close_plans() {
  int64_t lowest_bytes = highest_bytes_;
  for (size_t group = 0; group < count() && groups_.reaches(group); ++group)
    if (const std::vector<RematPlan>& of_group = plans(group); !of_group.empty())
      lowest_bytes = of_group.back().level_bytes;
  const int64_t close_bytes = close_to(lowest_bytes);
  std::vector<std::vector<RematPlan>> close;
  for (size_t group = 0; group < count() && groups_.reaches(group); ++group)
    if (highest_bytes(group) > highest_bytes_ && groups_.lowest_bytes(group) <= close_bytes)
      close.push_back(search(group, close_bytes));
  return close;
}

}  // namespace plimsoll
