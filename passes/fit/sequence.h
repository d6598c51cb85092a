#pragma once

// A problem's op sequence with repeats in it, measured incrementally: putting a repeat in or taking it out costs
// a few steps for each value its op touches.

#include "passes/fit/memory_profile.h"
#include "passes/fit/recompute.h"

#include <utility>

namespace plimsoll::fit {

class Sequence {
 public:
  explicit Sequence(const RecomputeProblem& problem);

  const RecomputeProblem& problem() const { return *problem_; }
  const MemoryProfile& memory() const { return memory_; }
  double added_us() const { return added_us_; }
  llvm::ArrayRef<Moment> repeats() const { return repeats_; }   // in no order that means anything

  bool may_repeat(Moment at) const;             // and does not yet
  bool has(Moment at) const { return memory_.has(at); }
  void insert(Moment at);
  void erase(Moment at);

  int32_t producer(int32_t value) const { return producer_[static_cast<size_t>(value)]; }  // -1: none
  // Of the occurrence of `value` that a use at `at` would read: where it is made, and its last use so far.
  Moment made(int32_t value, Moment at) const;
  Moment last_use(int32_t value, Moment at) const;
  bool is_alive(int32_t value, Moment at) const { return last_use(value, at) >= at; }
  // The first use after `at` that reads the occurrence alive there; `none()` when there is no such use.
  Moment next_use(int32_t value, Moment at) const;
  Moment none() const { return {problem_->op_count() + 1, 0}; }
  bool touches(int32_t op, int32_t value) const;
  // Whether an occurrence is read before the next one of the same op.
  bool is_read(Moment at) const;

  // Repeats `at` with those of its ancestors whose values are gone by then, nearest first, at most `most` ops.
  void insert_with_ancestors(Moment at, int32_t most);
  // Takes the repeat out, and every repeat that then nobody reads.
  void erase_with_unread(Moment at);

  // Changes since `mark` taken back.
  size_t mark() const { return journal_.size(); }
  void rewind(size_t mark);
  void forget_journal() { journal_.clear(); }

 private:
  struct Change {
    bool inserted;
    Moment at;
  };
  struct Occurrence {
    int32_t stage;
    int32_t index;           // in repeats_; -1: the base op
    int64_t taken_over = 0;  // bytes that in-place results save at that moment
  };

  const RecomputeOp& op(Moment at) const { return problem_->ops[static_cast<size_t>(at.op)]; }
  int64_t bytes(int32_t value) const { return problem_->value_bytes[static_cast<size_t>(value)]; }
  Moment last_use_before(int32_t value, Moment made, Moment until) const;
  Moment next_made(int32_t value, Moment at) const;
  int64_t live_across(Moment at) const;
  int64_t taken_over(Moment at) const;
  void refresh_taken_over(Moment at);
  void put(Moment at);
  void take(Moment at);
  const Occurrence& occurrence(Moment at) const;
  Occurrence& occurrence(Moment at) { return const_cast<Occurrence&>(std::as_const(*this).occurrence(at)); }
  void add_occurrence(Moment at);
  void drop_occurrence(Moment at);

  const RecomputeProblem* problem_;
  MemoryProfile memory_;
  std::vector<int32_t> producer_;                              // by value
  std::vector<llvm::SmallVector<Moment, 4>> uses_;             // by value, sorted
  std::vector<llvm::SmallVector<Occurrence, 2>> occurrences_;  // by op, sorted; the base op first
  std::vector<Moment> repeats_;
  std::vector<Change> journal_;
  double added_us_ = 0;
};

}  // namespace plimsoll::fit
