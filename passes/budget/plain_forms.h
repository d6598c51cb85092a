#pragma once

// Other forms of the whole batch's program, with what is seldom worth its bytes where these are few: updates that write
// the next step's copies of parameters, and launches that do two ops.

#include "passes/budget/job_program.h"

namespace plimsoll {

class PlainForms {
 public:
  // What it is given outlives it. `usual` is the program without copies and joined launches.
  PlainForms(const TrainingRequest& request, const JobPrograms& programs, const JobProgram& usual)
      : request_(request), programs_(programs), usual_(usual) {}

  using Forms = llvm::ArrayRef<std::unique_ptr<JobProgram>>;
  // Those with joined launches, which may have remats; none within a tight budget, which does not derive them.
  Result<Forms> joined_within(int64_t budget_bytes);
  // Those with copies of parameters alone that fit as they are. Within every budget from what one needs on it may be
  // used: so more budget gives no slower plan. Tight budgets do not derive it, and one that would fit there is not used
  // at all.
  Result<std::vector<const JobProgram*>> with_copies_within(int64_t budget_bytes);
  // The fastest form, the usual one among them, where all fit with quick layouts. Null where they may not, or where
  // what they need decides.
  Result<const JobProgram*> fastest_of_all(int64_t budget_bytes);

 private:
  bool has_forms() const { return !request_.is_short && !request_.is_one_of_many && request_.split <= 1; }
  Status make_joined();
  Status make_with_copies();

  const TrainingRequest& request_;
  const JobPrograms& programs_;
  const JobProgram& usual_;
  std::optional<std::vector<std::unique_ptr<JobProgram>>> joined_, with_copies_;  // none: not made yet
};

}  // namespace plimsoll
