#pragma once

// Which ops and copies stand where in a schedule, and which values are alive at each point. Putting one in or taking it
// out costs a few steps for each value it touches.

#include "passes/remat/remat_ops.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace plimsoll::remat {

// A reloaded value is alive from the point where its reload is issued, an offloaded one at least up to the point where
// its offload is done. What a base op made may be made again by remats of the op and by reloads: each is an occurrence
// of the value, and every use reads the latest one before it.
class RematLiveness : public RematOps {
 public:
  explicit RematLiveness(const RematProblem& problem);

  const MemoryProfile& memory() const { return memory_; }
  llvm::ArrayRef<ProgramPoint> extras() const { return extras_; }  // remats, offloads and reloads, in no useful order
  bool has(ProgramPoint at) const { return memory_.has(at); }

  // The occurrence of `value` that a use at `at` would read: where it is made, and its last use so far.
  ProgramPoint made(int32_t value, ProgramPoint at) const;
  ProgramPoint last_use(int32_t value, ProgramPoint at) const;
  // Most values are not used any more by then, or not again, which takes one look.
  bool is_alive(int32_t value, ProgramPoint at) const {
    const ValueUse& use = value_uses_[value];
    return use.last >= at && (use.times_again == 0 || last_use(value, at) >= at);
  }
  // The first use after `at` that reads the occurrence alive there; `none()` when there is no such use.
  ProgramPoint next_use(int32_t value, ProgramPoint at) const;
  // Whether an occurrence is read before the values it makes are made again.
  bool is_read(ProgramPoint at) const;

 protected:
  static constexpr ProgramPoint from_the_start{0, -1};

  // What it takes to undo a change, besides the additions to the profile.
  struct Undo {
    size_t additions = 0;          // so many came before it,
    size_t gone = 0;               // and so many before a point was gone,
    int64_t live = 0, reused = 0;  // which had these bytes
    int64_t steps = 0;             // that the profile counts to put the point back, besides these
  };
  Undo put(ProgramPoint at);
  Undo take(ProgramPoint at);
  // Undo the last change as `take` and `put` would, without looking for what it changed.
  void take_back_put(ProgramPoint at, const Undo& undo);
  void take_back_take(ProgramPoint at, const Undo& undo);
  void forget_additions() { additions_.clear(); }

  bool is_in_schedule(int32_t id) const { return !occurrences_[id].empty(); }
  bool is_offloaded(int32_t reload) const { return is_in_schedule(offload_of(reload)); }
  int32_t last_position(int32_t id) const { return occurrences_[id].back().position; }
  ProgramPoint latest_before(int32_t id, ProgramPoint at) const;
  // Where `value` is made next after `at`.
  ProgramPoint next_made(int32_t value, ProgramPoint at) const;

 private:
  struct Occurrence {
    int32_t position;
    int32_t index;       // in extras_; -1: the base op
    int64_t reused = 0;  // bytes that in-place results save at that point
  };

  ProgramPoint first_after(int32_t id, ProgramPoint at) const;
  ProgramPoint last_use_before(int32_t value, ProgramPoint made, ProgramPoint until) const;
  int64_t live_across(ProgramPoint at) const;
  int64_t reused(ProgramPoint at) const;
  int64_t refresh_reused(ProgramPoint at);
  void add(ProgramPoint first, ProgramPoint last, int64_t bytes);
  void move_end(ProgramPoint at);
  void take_back_additions(size_t before);
  const Occurrence& occurrence(ProgramPoint at) const;
  Occurrence& occurrence(ProgramPoint at) { return const_cast<Occurrence&>(std::as_const(*this).occurrence(at)); }
  void add_use(int32_t value, ProgramPoint at);
  void drop_use(int32_t value, ProgramPoint at);
  void add_occurrence(ProgramPoint at);
  void drop_occurrence(ProgramPoint at);

  // Most values are made once, and then this says all that is asked.
  struct ValueUse {
    ProgramPoint first_made = from_the_start;
    ProgramPoint last = from_the_start;  // of its uses
    int32_t times_again = 0;             // that remats and reloads make it
  };

  struct Addition {
    ProgramPoint first, last;
    int64_t bytes;
    bool is_reused;  // it is the change of what an occurrence reuses
  };

  MemoryProfile memory_;
  std::vector<Addition> additions_;                            // to the profile, that may be taken back
  std::vector<ValueUse> value_uses_;                           // by value
  std::vector<llvm::SmallVector<ProgramPoint, 4>> uses_;       // by value, sorted
  std::vector<llvm::SmallVector<Occurrence, 2>> occurrences_;  // by id, sorted; the base op first
  std::vector<ProgramPoint> extras_;
};

// A search asks for these millions of times.

inline ProgramPoint RematLiveness::latest_before(int32_t id, ProgramPoint at) const {
  // There are few, mostly one.
  for (const Occurrence& occurrence : llvm::reverse(occurrences_[id]))
    if (ProgramPoint{occurrence.position, id} < at) return {occurrence.position, id};
  return from_the_start;
}

inline ProgramPoint RematLiveness::first_after(int32_t id, ProgramPoint at) const {
  for (const Occurrence& occurrence : occurrences_[id])
    if (at < ProgramPoint{occurrence.position, id}) return {occurrence.position, id};
  return none();
}

inline ProgramPoint RematLiveness::made(int32_t value, ProgramPoint at) const {
  if (value_uses_[value].times_again == 0) return value_uses_[value].first_made;
  const int32_t op = producer(value), reload = reload_of(value);
  const ProgramPoint latest = latest_before(op, at);
  assert(latest != from_the_start && "a value is used after it was first made");
  return reload < 0 ? latest : std::max(latest, latest_before(reload, at));
}

inline ProgramPoint RematLiveness::next_made(int32_t value, ProgramPoint at) const {
  if (value_uses_[value].times_again == 0)
    return at < value_uses_[value].first_made ? value_uses_[value].first_made : none();
  const int32_t op = producer(value), reload = reload_of(value);
  const ProgramPoint first = first_after(op, at);
  return reload < 0 ? first : std::min(first, first_after(reload, at));
}

inline ProgramPoint RematLiveness::last_use_before(int32_t value, ProgramPoint made, ProgramPoint until) const {
  if (value_uses_[value].last < until) return std::max(made, value_uses_[value].last);
  const auto& uses = uses_[value];
  const auto after = std::lower_bound(uses.begin(), uses.end(), until);
  return after == uses.begin() ? made : std::max(made, *std::prev(after));
}

inline ProgramPoint RematLiveness::last_use(int32_t value, ProgramPoint at) const {
  if (value_uses_[value].times_again == 0) return std::max(value_uses_[value].first_made, value_uses_[value].last);
  const ProgramPoint start = made(value, at);
  return last_use_before(value, start, next_made(value, start));
}

}  // namespace plimsoll::remat
