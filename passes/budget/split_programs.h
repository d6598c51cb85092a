#pragma once

// The programs of a job in which a region of the model runs chunk by chunk. Which there are does not depend on the
// budget, but for long ones that a refusal has no use for.

#include "passes/budget/job_program.h"

#include <limits>

namespace plimsoll {

using JobProgramList = std::vector<std::unique_ptr<JobProgram>>;

class SplitPrograms {
 public:
  SplitPrograms(const ForwardModel& forward, const TrainingRequest& request, const JobPrograms& programs,
                const JobProgram& whole)
      : forward_(forward), request_(request), programs_(programs), whole_(whole) {}

  // Makes those that are not made yet, without long ones that shorter ones of their region show to need `enough_bytes`
  // or more.
  enum class Derived : uint8_t { None, Short, All };
  Derived derived() const { return derived_; }
  Status derive(bool with_long, int64_t enough_bytes = std::numeric_limits<int64_t>::max());

  llvm::ArrayRef<std::unique_ptr<JobProgram>> worthwhile() const { return worthwhile_; }  // by the time they take
  llvm::ArrayRef<std::unique_ptr<JobProgram>> others() const { return others_; }          // not worth a search

  // Once short ones are derived: whether a long one may need less than so many bytes, as far as they tell.
  bool may_long_need_less(int64_t bytes) const;

  // The regions in which a search for a job like this one looks for chunks: that of the plan that needs least, or where
  // it has no chunks all that are worth a search, or might be in a job whose program is shorter.
  std::vector<size_t> regions_for_others(const FitSummary& smallest) const;

 private:
  std::vector<ValueId> chosen_regions() const;
  struct RegionSplits {
    JobProgramList programs;
    bool is_long = false;  // even the fewest chunks are too long for states on the host, and such were not asked for
  };
  // `known` are programs of the region that were derived before.
  RegionSplits split_behind(ValueId from, bool with_long, int64_t enough_bytes, JobProgramList known) const;
  bool may_be_worthwhile_with_more(const JobProgram& split) const;
  double most_saved_with_more(const JobProgram& split, int64_t bytes) const;
  double least_with_more(const JobProgram& split) const;
  bool may_remats_need_less(double plain_bytes, int64_t bytes) const;
  double most_nodes() const;

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const JobPrograms& programs_;
  const JobProgram& whole_;
  Derived derived_ = Derived::None;
  JobProgramList worthwhile_, others_;
  std::vector<size_t> long_regions_;  // where even the fewest chunks are too long for states on the host
};

}  // namespace plimsoll
