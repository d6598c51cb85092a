#pragma once

// What the plan of one stage means for the step of a pipeline, before all stages have plans.

#include "ir/plan/plan.h"

#include <atomic>
#include <mutex>

namespace plimsoll {

// Stages without a plan count with their plain plans, which are without remats and copies and hardly ever slower.
class StepOfStages {
 public:
  // `plain` is by stage. `order` has the stages as they are searched, the slowest first, and outlives this. Steps are
  // wanted that take less than `enough_us`.
  StepOfStages(std::vector<const Plan*> plain, llvm::ArrayRef<size_t> order, double enough_us);

  // Notes a stage's plan, which outlives this: the first stage's before others are searched, and those of the others
  // from any thread.
  void add(size_t stage, const Plan& plan);

  // Whether the plans that are known make the step too slow. Plans count in the order of the search, whichever thread
  // is first: once every stage has a plan or none, the answer does not depend on threads.
  bool is_too_slow() const { return is_too_slow_; }

  // A step with this plan of the stage, the one noted for the first stage, and the plain plans of the others. Neither
  // this nor what follows depends on what other threads note.
  double us_with(size_t stage, const Plan& plan) const;
  // Of two plans of the stage: the one within its budget; of two within, the one with which the step takes less.
  bool is_better(size_t stage, const Plan& a, const Plan& b) const;
  // A plan with which the step takes no longer than this is as good as the plain one.
  double fast_enough_us() const;
  // A plan of the stage that alone takes so long, or longer, makes the step too slow: the stage waits for the first
  // micro-batch besides, and others finish the last.
  double enough_us_of(size_t stage) const;
  // A plan of the stage that alone takes no longer probably makes the step no longer.
  double hidden_us_of(size_t stage) const;
  // A step in which the stage computes so much more than its plain plan.
  double us_with_more(size_t stage, double us) const;

 private:
  double us_with_stretched(size_t stage, double alone_us) const;

  std::vector<const Plan*> plain_, known_, in_order_;  // by stage: plain, with that of the first, and with all noted
  llvm::ArrayRef<size_t> order_;
  std::vector<const Plan*> noted_;
  size_t counted_ = 0;  // of the order
  double enough_us_, us_;
  std::atomic<bool> is_too_slow_ = false;
  std::mutex mutex_;
};

}  // namespace plimsoll
