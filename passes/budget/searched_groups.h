#pragma once

// Remats of one kind for one order of a function, found group by group as they are asked for.

#include "passes/remat/level_groups.h"

#include <memory>
#include <mutex>
#include <optional>

namespace plimsoll {

class SearchedGroups {
 public:
  // Plans above `highest_bytes` are wanted where they are close to the lowest alone. With `starts`, which offer no
  // copies, no plan adds more time than the start of its level.
  SearchedGroups(RematProblem problem, const RematOptions& options, int64_t highest_bytes,
                 std::shared_ptr<SearchedGroups> starts = nullptr);

  const RematProblem& problem() const { return groups_.problem(); }
  size_t count() const { return groups_.count(); }
  int64_t highest_bytes(size_t group) const { return groups_.highest_bytes(group); }
  int64_t lowest_bytes(size_t group) const { return groups_.lowest_bytes(group); }

  // The plans of a group, highest level first, or of the last group before it that the way down gets to, which has
  // all lower levels. May be called from several threads; each searches what nobody has searched yet.
  const std::vector<RematPlan>& plans(size_t group);
  size_t last_up_to(size_t group);  // the group whose plans these are
  // The plans above what is wanted that are close to the lowest, by group.
  std::vector<std::vector<RematPlan>> close_plans();

 private:
  enum class CloseLevels : uint8_t { No, Yes };
  const std::vector<RematPlan>& found(size_t group);
  std::vector<RematPlan> search(size_t group, int64_t highest_bytes, CloseLevels close);

  RematLevelGroups groups_;
  int64_t highest_bytes_;
  std::shared_ptr<SearchedGroups> starts_;
  std::vector<std::optional<std::vector<RematPlan>>> found_;  // by group
  std::mutex mutex_;
};

}  // namespace plimsoll
