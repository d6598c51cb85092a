#pragma once

// A problem's schedule with remats, offloads and reloads in it: what may be inserted where, how long it takes, and how
// to take changes back. Time and bytes are measured incrementally.

#include "ir/machine/engine_clock.h"
#include "passes/remat/remat_liveness.h"

#include <optional>

namespace plimsoll::remat {

// A lower bound of the time that a schedule takes beyond its own compute: with all engines side by side it takes as
// long as compute, or as the copies of both directions.
class EngineLoads {
 public:
  // Share of their time that copies cost even when they hide behind compute, so that the cheaper of two plans copies
  // less.
  static constexpr double price_of_hidden_copies = 0.02;

  explicit EngineLoads(const RematProblem& problem);

  // Adds a remat or copy to what the problem has, or takes it away again.
  void add(Engine engine, double us) { change(engine, us, interference_.us(us)); }
  void remove(Engine engine, double us) { change(engine, -us, -interference_.us(us)); }

  double added_us() const;
  double hidden_price_us() const { return price_of_hidden_copies * copied_us_; }
  // The time of all remats and copies that were added, as if none of it hid.
  double placed_us() const { return placed_us_; }

 private:
  void change(Engine engine, double us, double interference_us);

  DuplexShares shares_;
  CopyInterference interference_;
  double compute_us_ = 0;  // of the problem
  double remat_us_ = 0;    // remats that were added, and the interference of copies that were added
  double to_host_us_ = 0, to_device_us_ = 0;
  double copied_us_ = 0;  // copies that were added
  double placed_us_ = 0;
};

// A value is offloaded once, from where it is first made, while there are reloads of it.
class RematSchedule : public RematLiveness {
 public:
  explicit RematSchedule(const RematProblem& problem);

  // How much later all engines are through than without extras, plus a small price of copies that hide.
  double added_us() const;
  const EngineLoads& loads() const { return loads_; }

  bool may_insert(ProgramPoint at) const;  // false where it stands already
  // A value's first reload brings its offload, done as soon as it can be without a stall; its last reload takes the
  // offload away again.
  void insert(ProgramPoint at);
  void erase(ProgramPoint at);
  void insert_alone(ProgramPoint at);
  void erase_alone(ProgramPoint at);
  // Has compute wait for the offload behind the op that makes its value.
  void make_synchronous(int32_t offload);
  // Where a reload that is used at base op `position` is issued so that it does not stall compute, but behind `after`.
  ProgramPoint unhurried(int32_t reload, int32_t position, ProgramPoint after) const;

  // Inserts `at` with those of its ancestors whose values are gone by then, rematerialised or reloaded, nearest first,
  // at most `max_ops` in all. False when `is_worth_it` said no and the insertion stopped halfway.
  bool insert_with_ancestors(
      ProgramPoint at, int32_t max_ops, llvm::function_ref<bool()> is_worth_it = [] { return true; }) {
    Chain chain(at);
    return extend(chain, max_ops, is_worth_it);
  }

  // The same of one chain with more and more ops: what `extend` leaves is what inserting it anew would leave, as long
  // as nothing else changes in between.
  class Chain {
   public:
    explicit Chain(ProgramPoint at) : at_(at), wanted_{at.op()} {}

   private:
    friend class RematSchedule;
    ProgramPoint at_;
    // Ops to insert and the number of those inserted, before the turn of the first op of which an ancestor was left
    // out.
    llvm::SmallVector<int32_t, 16> wanted_;
    int32_t ops_ = 0;
    std::optional<size_t> cut_off_;  // the mark there; none where no ancestor was left out
  };
  bool extend(
      Chain& chain, int32_t max_ops, llvm::function_ref<bool()> is_worth_it = [] { return true; });
  // Takes it out, and every remat and reload that then nobody reads.
  void erase_with_unread(ProgramPoint at);

  // Takes back the changes since `mark`.
  size_t mark() const { return journal_.size(); }
  void rewind(size_t mark);
  void forget_journal();

 private:
  struct Change {
    bool inserted;
    ProgramPoint at;
    size_t events = 0;  // so many were noted before it
    Undo undo = {};
  };
  enum class EventKind : uint8_t { Needed, Remat, Made, Offloaded, Reload };  // in this order at one point
  // Something that an engine does besides the base ops.
  struct Event {
    ProgramPoint at;
    EventKind kind;
    int32_t id;
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  bool may_copy(ProgramPoint at) const;
  int32_t offload_position(int32_t reload, int32_t latest) const;
  void change(ProgramPoint at, bool inserted);
  void take_back(const Change& change);
  llvm::SmallVector<Event, 2> events_of(ProgramPoint extra) const;
  void add_events(ProgramPoint extra);
  void drop_events(ProgramPoint extra);
  void note_event(const Event& event, bool added);
  void keep_event(const Event& event, bool added);
  void settle_events() const;
  llvm::SmallVector<ProgramPoint, 8> reloads_ahead(ProgramPoint at) const;
  void go_back(size_t event) const;
  double stalled_and_remat_us() const;
  double added_us_with(ProgramPoint at, int32_t position) const;
  ProgramPoint cheaper_producer(int32_t value, int32_t position, ProgramPoint last_use) const;

  EngineLoads loads_;
  std::vector<Change> journal_;
  struct EventChange {
    Event event;
    bool added;  // or dropped
  };
  std::vector<EventChange> noted_;     // by the changes in the journal
  mutable std::vector<Event> events_;  // sorted, of the extras when time was measured last; none where all is compute
  mutable std::vector<EventChange> event_changes_;  // since then
  mutable std::vector<Event> settled_;              // scratch of those between the first change and the last
  // Time is measured from the last mark ahead of the first change on.
  struct Mark {
    size_t event = 0;     // about to happen
    double later_us = 0;  // delay of compute against the schedule without extras
    size_t issued = 0;    // of issued_
    EngineClock::Mark clock;
  };
  struct IssuedCopy {
    size_t copy, place_before;
  };
  mutable std::vector<Mark> marks_;
  mutable std::vector<IssuedCopy> issued_;
  mutable EngineClock clock_;
  mutable std::vector<size_t> places_;        // by copy: in its engine, of the occurrence looked at last
  mutable std::optional<double> added_us_;    // unset until it is asked for after a change
  mutable std::optional<double> rewound_us_;  // the added time where the journal starts
};

}  // namespace plimsoll::remat
