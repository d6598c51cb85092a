#pragma once

// The levels of a problem in groups, each of which can be searched without the others, so that those which cannot have
// the plan that is wanted need not be searched at all.

#include "passes/remat/remat.h"
#include "passes/remat/remat_search.h"

#include <optional>

namespace plimsoll {

// What the way down has inserted within a limit.
struct RematLevel {
  int64_t limit;
  double added_us;
  std::vector<remat::ProgramPoint> extras;
};

// A problem that is not long has one group. Those of a long one go down by a seventh each, or further. What a group has
// depends on the problem and the options alone, and not on which groups were searched before.
class RematLevelGroups {
 public:
  RematLevelGroups(RematProblem problem, const RematOptions& options);

  const RematProblem& problem() const { return problem_; }
  size_t count() const { return ends_.size(); }  // of groups that may be within reach
  int64_t highest_bytes(size_t group) const { return limits_[begin(group)]; }
  int64_t lowest_bytes(size_t group) const { return limits_[ends_[group] - 1]; }
  // Whether the way down gets to where the group begins; the last group it gets to may have lower levels than its own.
  bool reaches(size_t group);

  // As `remat_levels`, of the levels of one group and without the plain plan; empty where it has none.
  std::vector<RematPlan> search(size_t group, int64_t highest_bytes, bool close_levels,
                                llvm::ArrayRef<RematPlan> starts = {});

 private:
  bool is_long() const { return problem_.op_count() >= long_ops; }
  size_t begin(size_t group) const { return group > 0 ? ends_[group - 1] : 0; }
  static RematLevel level_at(remat::RematSchedule& schedule, int64_t limit);
  void start_from(remat::RematSchedule& schedule, size_t group) const;
  double bound_us(int64_t limit, int64_t steps) const;
  void rescue(remat::RematSchedule& schedule, int64_t limit, const RematLevel* above) const;
  std::vector<RematLevel> way_down(remat::RematSchedule& schedule, size_t group);

  RematProblem problem_;
  int64_t steps_;
  remat::Tried tried_;
  remat::Chains chains_;
  std::vector<int64_t> limits_;                            // highest first
  std::vector<size_t> ends_;                               // by group, in limits_
  std::vector<RematLevel> strides_;                        // the level at the end of each group that was passed
  std::optional<std::vector<remat::ProgramPoint>> stuck_;  // what the next stride inserted before it got stuck
};

}  // namespace plimsoll
