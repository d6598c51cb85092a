#pragma once

// A problem's op schedule with remats and reloads in it, measured incrementally: putting one in or taking it out costs
// a few steps for each value it touches.

#include "ir/machine/engine_clock.h"
#include "passes/remat/engine_loads.h"
#include "passes/remat/memory_profile.h"
#include "passes/remat/remat.h"

#include <optional>
#include <utility>

namespace plimsoll::remat {

// Copies are ops too, with ids beyond those of the problem and no place in its order. What is reloaded is alive from
// the point its reload is issued, what is offloaded up to the point its offload is done. A reload issued before base op
// s, or a offload done before it, is the point {s - 1, id}: behind the op before, ahead of the remats of position s. A
// value is offloaded once, from where it is first made, while there are reloads of it.
class RematSchedule {
 public:
  explicit RematSchedule(const RematProblem& problem);

  const RematProblem& problem() const { return *problem_; }
  const MemoryProfile& memory() const { return memory_; }
  // By which compute, stalled by copies, and all engines are through later, and a little for copies that hide.
  double added_us() const;
  const EngineLoads& loads() const { return loads_; }
  bool is_all_compute() const { return all_compute_; }  // no copies, and none on offer
  // Compute before a base op, or all there is, without extras.
  double clock_us(int32_t position) const { return clock_us_[static_cast<size_t>(position)]; }
  llvm::ArrayRef<ProgramPoint> extras() const {
    return extras_;
  }  // remats, offloads_made, reloads; in no order that means anything

  const RematOp& op(int32_t id) const {
    return id < problem_->op_count() ? problem_->ops[static_cast<size_t>(id)] : copies_[copy_index(id)];
  }
  bool is_copy(int32_t id) const { return id > problem_->op_count(); }
  bool is_reload(int32_t id) const { return id > problem_->op_count() + offload_count(); }
  bool is_offload(int32_t id) const { return is_copy(id) && !is_reload(id); }
  ProgramPoint point_before(int32_t position, int32_t id) const { return {is_copy(id) ? position - 1 : position, id}; }
  int32_t position_after(ProgramPoint extra) const { return is_copy(extra.op) ? extra.position + 1 : extra.position; }
  int32_t reload_of(int32_t value) const {
    return reload_of_[static_cast<size_t>(value)];
  }  // -1: it stays on the device
  int32_t offload_of(int32_t reload) const { return reload - offload_count(); }
  // What a value's first reload costs besides; 0 for an op.
  double to_host_us(int32_t id) const { return is_reload(id) ? op(offload_of(id)).cost_us : 0; }
  // What has made a value before `position` and may make it again: the ops, then the reloads.
  int32_t producer_count(int32_t position) const;
  int32_t producer_at(int32_t index, int32_t position) const;

  bool may_insert(ProgramPoint at) const;  // and is not there yet
  bool has(ProgramPoint at) const { return memory_.has(at); }
  // With a value's first reload comes its offload, done as soon as it can be without a stall, and with its last reload
  // that goes.
  void insert(ProgramPoint at);
  void erase(ProgramPoint at);
  void insert_alone(ProgramPoint at);
  void erase_alone(ProgramPoint at);
  // Has compute wait for the offload behind the op that makes its value.
  void make_synchronous(int32_t offload);
  // Where a reload that is used at base op `position` is issued so that it does not stall, but behind `after`.
  ProgramPoint unhurried(int32_t reload, int32_t position, ProgramPoint after) const;

  int32_t producer(int32_t value) const { return producer_[static_cast<size_t>(value)]; }  // -1: none
  // Of the occurrence of `value` that a use at `at` would read: where it is made, and its last use so far.
  ProgramPoint made(int32_t value, ProgramPoint at) const;
  ProgramPoint last_use(int32_t value, ProgramPoint at) const;
  bool is_alive(int32_t value, ProgramPoint at) const { return last_use(value, at) >= at; }
  // The first use after `at` that reads the occurrence alive there; `none()` when there is no such use.
  ProgramPoint next_use(int32_t value, ProgramPoint at) const;
  ProgramPoint none() const { return {problem_->op_count() + 1, 0}; }
  bool touches(int32_t op, int32_t value) const;
  // Whether an occurrence is read before what it makes is made again.
  bool is_read(ProgramPoint at) const;

  // Inserts `at` with those of its ancestors whose values are gone by then, repeated or reloaded, nearest first, at
  // most `most` ops. False: stopped halfway because what was inserted was no longer worth it.
  bool insert_with_ancestors(
      ProgramPoint at, int32_t most, llvm::function_ref<bool()> is_worth_it = [] { return true; });
  // Takes it out, and every repeat and reload that then nobody reads.
  void erase_with_unread(ProgramPoint at);

  // Changes since `mark` taken back.
  size_t mark() const { return journal_.size(); }
  void rewind(size_t mark);
  void forget_journal();

 private:
  struct Change {
    bool inserted;
    ProgramPoint at;
  };
  enum class EventKind : uint8_t { Needed, Remat, Made, Offloaded, Reload };  // in this order at one point
  // Something extra that a engine does.
  struct Event {
    ProgramPoint at;
    EventKind kind;
    int32_t id;
    friend auto operator<=>(const Event&, const Event&) = default;
  };
  struct Occurrence {
    int32_t position;
    int32_t index;       // in extras_; -1: the base op
    int64_t reused = 0;  // bytes that in-place results save at that point
  };

  static constexpr ProgramPoint from_the_start{0, -1};

  int32_t offload_count() const { return static_cast<int32_t>(problem_->offloads.size()); }
  size_t copy_index(int32_t id) const { return static_cast<size_t>(id - problem_->op_count() - 1); }
  size_t& place(int32_t copy) const { return places_[copy_index(copy)]; }
  int32_t copied(int32_t id) const { return is_reload(id) ? op(id).writes[0] : op(id).reads[0]; }
  bool is_offloaded(int32_t reload) const { return !occurrences_[static_cast<size_t>(offload_of(reload))].empty(); }
  const RematOp& op(ProgramPoint at) const { return op(at.op); }
  void collect_copies();
  bool may_copy(ProgramPoint at) const;
  int32_t offload_position(int32_t reload, int32_t latest) const;
  void charge(ProgramPoint at);
  void refund(ProgramPoint at);
  llvm::SmallVector<Event, 2> events_of(ProgramPoint extra) const;
  void add_events(ProgramPoint extra);
  void drop_events(ProgramPoint extra);
  llvm::SmallVector<ProgramPoint, 8> reloads_ahead(ProgramPoint at) const;
  double stalled_and_remat_us() const;
  double added_us_with(ProgramPoint at, int32_t position) const;
  ProgramPoint cheaper_producer(int32_t value, int32_t position, ProgramPoint last_use) const;
  int64_t bytes(int32_t value) const { return problem_->value_bytes[static_cast<size_t>(value)]; }
  ProgramPoint latest_before(int32_t id, ProgramPoint at) const;
  ProgramPoint first_after(int32_t id, ProgramPoint at) const;
  ProgramPoint last_use_before(int32_t value, ProgramPoint made, ProgramPoint until) const;
  ProgramPoint next_made(int32_t value, ProgramPoint at) const;
  int64_t live_across(ProgramPoint at) const;
  int64_t reused(ProgramPoint at) const;
  void refresh_reused(ProgramPoint at);
  void put(ProgramPoint at);
  void take(ProgramPoint at);
  const Occurrence& occurrence(ProgramPoint at) const;
  Occurrence& occurrence(ProgramPoint at) { return const_cast<Occurrence&>(std::as_const(*this).occurrence(at)); }
  void add_occurrence(ProgramPoint at);
  void drop_occurrence(ProgramPoint at);

  const RematProblem* problem_;
  MemoryProfile memory_;
  std::vector<int32_t> producer_;                              // by value
  std::vector<llvm::SmallVector<ProgramPoint, 4>> uses_;       // by value, sorted
  std::vector<llvm::SmallVector<Occurrence, 2>> occurrences_;  // by id, sorted; the base op first
  std::vector<RematOp> copies_;     // offloads_made, then reloads, in the order their values are first made
  std::vector<double> cost_us_;     // by id
  std::vector<int32_t> reload_of_;  // by value: the id; -1: none
  std::vector<double> clock_us_;    // by base op, and for the end: compute before it
  std::vector<ProgramPoint> extras_;
  std::vector<Change> journal_;
  bool all_compute_;
  EngineLoads loads_;
  std::vector<Event> events_;  // of all extras, sorted; none where all is compute
  mutable EngineClock clock_;
  mutable std::vector<size_t> places_;        // by copy: in its engine, of the occurrence looked at last
  mutable std::optional<double> added_us_;    // once it was asked for
  mutable std::optional<double> rewound_us_;  // where the journal starts
};

}  // namespace plimsoll::remat
