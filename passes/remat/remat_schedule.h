#pragma once

// A problem's op sequence with repeats and fetches in it, measured incrementally: putting one in or taking it out costs
// a few steps for each value it touches.

#include "ir/machine/duplex_link.h"
#include "passes/remat/engine_loads.h"
#include "passes/remat/memory_profile.h"
#include "passes/remat/remat.h"

#include <optional>
#include <utility>

namespace plimsoll::fit {

// Copies are ops too, with ids beyond those of the problem and no place in its order. What is fetched is alive from the moment its fetch
// is issued, what is stored up to the moment its store is done. A fetch issued before base op s, or a store done before it, is the moment
// {s - 1, id}: behind the op before, ahead of the repeats of stage s. A value is stored once, from where it is first made, while
// there are fetches of it.
class Sequence {
 public:
  explicit Sequence(const RecomputeProblem& problem);

  const RecomputeProblem& problem() const { return *problem_; }
  const MemoryProfile& memory() const { return memory_; }
  // By which compute, stalled by copies, and all channels are through later, and a little for copies that hide.
  double added_us() const;
  const ChannelLoads& loads() const { return loads_; }
  bool is_all_compute() const { return all_compute_; }  // no copies, and none on offer
  // Compute before a base op, or all there is, without extras.
  double clock_us(int32_t stage) const { return clock_us_[static_cast<size_t>(stage)]; }
  llvm::ArrayRef<Moment> extras() const { return extras_; }     // repeats, stores, fetches; in no order that means anything

  const RecomputeOp& op(int32_t id) const {
    return id < problem_->op_count() ? problem_->ops[static_cast<size_t>(id)] : copies_[copy_index(id)];
  }
  bool is_copy(int32_t id) const { return id > problem_->op_count(); }
  bool is_fetch(int32_t id) const { return id > problem_->op_count() + offload_count(); }
  bool is_store(int32_t id) const { return is_copy(id) && !is_fetch(id); }
  Moment moment_before(int32_t stage, int32_t id) const { return {is_copy(id) ? stage - 1 : stage, id}; }
  int32_t stage_after(Moment extra) const { return is_copy(extra.op) ? extra.stage + 1 : extra.stage; }
  int32_t fetch_of(int32_t value) const { return fetch_of_[static_cast<size_t>(value)]; }  // -1: it stays on the device
  int32_t store_of(int32_t fetch) const { return fetch - offload_count(); }
  // What a value's first fetch costs besides; 0 for an op.
  double to_host_us(int32_t id) const { return is_fetch(id) ? op(store_of(id)).cost_us : 0; }
  // What has made a value before `stage` and may make it again: the ops, then the fetches.
  int32_t maker_count(int32_t stage) const;
  int32_t maker(int32_t index, int32_t stage) const;

  bool may_insert(Moment at) const;             // and is not there yet
  bool has(Moment at) const { return memory_.has(at); }
  // With a value's first fetch comes its store, done as soon as it can be without a stall, and with its last fetch that goes.
  void insert(Moment at);
  void erase(Moment at);
  void insert_alone(Moment at);
  void erase_alone(Moment at);
  // Has compute wait for the store behind the op that makes its value.
  void hurry(int32_t store);
  // Where a fetch that is used at base op `stage` is issued so that it does not stall, but behind `after`.
  Moment unhurried(int32_t fetch, int32_t stage, Moment after) const;

  int32_t producer(int32_t value) const { return producer_[static_cast<size_t>(value)]; }  // -1: none
  // Of the occurrence of `value` that a use at `at` would read: where it is made, and its last use so far.
  Moment made(int32_t value, Moment at) const;
  Moment last_use(int32_t value, Moment at) const;
  bool is_alive(int32_t value, Moment at) const { return last_use(value, at) >= at; }
  // The first use after `at` that reads the occurrence alive there; `none()` when there is no such use.
  Moment next_use(int32_t value, Moment at) const;
  Moment none() const { return {problem_->op_count() + 1, 0}; }
  bool touches(int32_t op, int32_t value) const;
  // Whether an occurrence is read before what it makes is made again.
  bool is_read(Moment at) const;

  // Inserts `at` with those of its ancestors whose values are gone by then, repeated or fetched, nearest first, at most `most` ops. False:
  // stopped halfway because what was inserted was no longer worth it.
  bool insert_with_ancestors(Moment at, int32_t most, llvm::function_ref<bool()> is_worth_it = [] { return true; });
  // Takes it out, and every repeat and fetch that then nobody reads.
  void erase_with_unread(Moment at);

  // Changes since `mark` taken back.
  size_t mark() const { return journal_.size(); }
  void rewind(size_t mark);
  void forget_journal();

 private:
  struct Change {
    bool inserted;
    Moment at;
  };
  enum class EventKind : uint8_t { Needed, Repeat, Made, Stored, Fetch };  // in this order at one moment
  // Something extra that a channel does.
  struct Event {
    Moment at;
    EventKind kind;
    int32_t id;
    friend auto operator<=>(const Event&, const Event&) = default;
  };
  struct Occurrence {
    int32_t stage;
    int32_t index;           // in extras_; -1: the base op
    int64_t taken_over = 0;  // bytes that in-place results save at that moment
  };

  static constexpr Moment from_the_start{0, -1};

  int32_t offload_count() const { return static_cast<int32_t>(problem_->offloads.size()); }
  size_t copy_index(int32_t id) const { return static_cast<size_t>(id - problem_->op_count() - 1); }
  int32_t copied(int32_t id) const { return is_fetch(id) ? op(id).writes[0] : op(id).reads[0]; }
  bool is_stored(int32_t fetch) const { return !occurrences_[static_cast<size_t>(store_of(fetch))].empty(); }
  const RecomputeOp& op(Moment at) const { return op(at.op); }
  void collect_copies();
  bool may_copy(Moment at) const;
  int32_t store_stage(int32_t fetch, int32_t latest) const;
  void charge(Moment at);
  void refund(Moment at);
  llvm::SmallVector<Event, 2> events_of(Moment extra) const;
  void add_events(Moment extra);
  void drop_events(Moment extra);
  llvm::SmallVector<Moment, 8> fetches_ahead(Moment at) const;
  double stalled_and_repeated_us() const;
  double added_us_with(Moment at, int32_t stage) const;
  Moment cheaper_maker(int32_t value, int32_t stage, Moment last_use) const;
  int64_t bytes(int32_t value) const { return problem_->value_bytes[static_cast<size_t>(value)]; }
  Moment latest_before(int32_t id, Moment at) const;
  Moment first_after(int32_t id, Moment at) const;
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
  std::vector<llvm::SmallVector<Occurrence, 2>> occurrences_;  // by id, sorted; the base op first
  std::vector<RecomputeOp> copies_;                            // stores, then fetches, in the order their values are first made
  std::vector<double> cost_us_;                                // by id
  std::vector<int32_t> fetch_of_;                              // by value: the id; -1: none
  std::vector<double> clock_us_;                               // by base op, and for the end: compute before it
  std::vector<Moment> extras_;
  std::vector<Change> journal_;
  bool all_compute_;
  ChannelLoads loads_;
  std::vector<Event> events_;               // of all extras, sorted; none where all is compute
  mutable CopyBus bus_;
  mutable std::vector<size_t> places_;      // by copy: in its channel, of the occurrence looked at last
  mutable std::optional<double> added_us_;  // once it was asked for
  mutable std::optional<double> rewound_us_;  // where the journal starts
};

}  // namespace plimsoll::fit
