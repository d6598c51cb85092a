#pragma once

// The ops of a problem and the copies that it offers, under one numbering. Nothing here changes with the schedule.

#include "passes/remat/memory_profile.h"
#include "passes/remat/remat.h"

namespace plimsoll::remat {

// Copies are ops too, with ids beyond those of the problem: first the offloads, then the reloads. A copy that stands
// before base op s is the point {s - 1, id}: behind the op before, ahead of the remats of position s.
class RematOps {
 public:
  explicit RematOps(const RematProblem& problem);

  const RematProblem& problem() const { return *problem_; }
  bool is_all_compute() const { return all_compute_; }  // the problem has no copies and offers none
  // Compute before a base op, or in all, without remats and copies that are added.
  double clock_us(int32_t position) const { return clock_us_[position]; }

  const RematOp& op(int32_t id) const {
    return id < problem_->op_count() ? problem_->ops[id] : copies_[copy_index(id)];
  }
  const RematOp& op(ProgramPoint at) const { return op(at.op()); }
  bool is_copy(int32_t id) const { return id > problem_->op_count(); }
  bool is_reload(int32_t id) const { return id > problem_->op_count() + offload_count(); }
  bool is_offload(int32_t id) const { return is_copy(id) && !is_reload(id); }
  ProgramPoint point_before(int32_t position, int32_t id) const { return {is_copy(id) ? position - 1 : position, id}; }
  int32_t position_after(ProgramPoint extra) const {
    return is_copy(extra.op()) ? extra.position() + 1 : extra.position();
  }

  int32_t producer(int32_t value) const { return producer_[value]; }    // -1: none
  int32_t reload_of(int32_t value) const { return reload_of_[value]; }  // -1: no offload is offered
  int32_t offload_of(int32_t reload) const { return reload - offload_count(); }
  int32_t copied(int32_t copy) const { return is_reload(copy) ? op(copy).writes[0] : op(copy).reads[0]; }
  // The offload that a value's first reload costs besides; 0 for an op.
  double to_host_us(int32_t id) const { return is_reload(id) ? op(offload_of(id)).cost_us : 0; }
  bool touches(int32_t id, int32_t value) const;
  int64_t bytes(int32_t value) const { return problem_->value_bytes[value]; }

  // Everything that can make a value again before `position`: the ops ahead of it, then the reloads of what they wrote.
  int32_t producer_count(int32_t position) const;
  int32_t producer_at(int32_t index, int32_t position) const;
  // No op has the id between the problem's ops and the copies.
  int32_t id_count() const { return problem_->op_count() + 1 + static_cast<int32_t>(copies_.size()); }
  ProgramPoint none() const { return {problem_->op_count() + 1, 0}; }

 protected:
  bool has_copies() const { return !copies_.empty(); }
  size_t copy_index(int32_t id) const { return static_cast<size_t>(id - problem_->op_count() - 1); }
  double cost_us(int32_t id) const { return cost_us_[id]; }
  llvm::ArrayRef<double> clock() const { return clock_us_; }

 private:
  int32_t offload_count() const { return static_cast<int32_t>(problem_->offloads.size()); }
  void add_copies();

  const RematProblem* problem_;
  std::vector<int32_t> producer_;   // by value
  std::vector<int32_t> reload_of_;  // by value: the id
  std::vector<RematOp> copies_;     // offloads, then reloads, each in the order in
                                    // which their values are first made
  std::vector<double> cost_us_;     // by id
  std::vector<double> clock_us_;    // by base op, and for the end
  bool all_compute_;
};

}  // namespace plimsoll::remat
