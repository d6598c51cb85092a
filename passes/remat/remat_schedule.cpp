#include "passes/remat/remat_schedule.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <utility>

namespace plimsoll::remat {

RematSchedule::RematSchedule(const RematProblem& problem)
    : RematLiveness(problem), loads_(problem), places_(2 * problem.offloads.size()) {}

bool RematSchedule::may_insert(ProgramPoint at) const {
  if (is_copy(at.op())) return may_copy(at);
  if (at.op() >= at.position() || !op(at).repeatable || at.position() > op(at).remat_until || has(at)) return false;
  // The offload copies the first occurrence, so it is done before the value is made again.
  return !has_copies() || llvm::none_of(op(at).writes, [&](int32_t v) {
    int32_t reload = reload_of(v);
    return reload >= 0 && is_offloaded(reload) && at.position() <= last_position(offload_of(reload));
  });
}

// An offload is done before its value is made again, and reloads are issued after it.
bool RematSchedule::may_copy(ProgramPoint at) const {
  const int32_t made_by = producer(copied(at.op()));
  if (at.position() < made_by || at.position() >= problem().op_count() || has(at)) return false;
  if (is_offload(at.op())) return at < next_made(copied(at.op()), {made_by, made_by});
  return at.position() > made_by && (!is_offloaded(at.op()) || at.position() >= last_position(offload_of(at.op())));
}

// The base op behind which the offload is done: the first where it has had the time it takes, but at the latest
// `latest` or the op before its value is made again.
int32_t RematSchedule::offload_position(int32_t reload, int32_t latest) const {
  const int32_t made_by = producer(copied(reload));
  ProgramPoint again = next_made(copied(reload), {made_by, made_by});
  if (again != none()) latest = std::min(latest, is_reload(again.op()) ? again.position() : again.position() - 1);
  auto through =
      std::lower_bound(clock().begin() + made_by + 1, clock().end(), clock_us(made_by + 1) + to_host_us(reload));
  return std::min(latest, std::max(made_by, static_cast<int32_t>(through - clock().begin()) - 1));
}

ProgramPoint RematSchedule::unhurried(int32_t reload, int32_t position, ProgramPoint after) const {
  double start_us = clock_us(position) - op(reload).cost_us;
  int32_t before =
      static_cast<int32_t>(std::upper_bound(clock().begin(), clock().end(), start_us) - clock().begin()) - 1;
  int32_t earliest = std::max(after < ProgramPoint{after.position(), reload} ? after.position() : after.position() + 1,
                              producer(copied(reload)) + 1);
  if (is_offloaded(reload)) earliest = std::max(earliest, last_position(offload_of(reload)));
  return {std::min(std::max(before - 1, earliest), position - 1), reload};
}

// Erasing notes events in the reverse order of inserting, so that the two cancel.
void RematSchedule::change(ProgramPoint at, bool inserted) {
  Change change{inserted, at, noted_.size()};
  llvm::SmallVector<ProgramPoint, 8> reloads = reloads_ahead(at);
  if (!inserted) {
    drop_events(at);
    std::reverse(reloads.begin(), reloads.end());
  }
  for (ProgramPoint reload : reloads) drop_events(reload);
  if (inserted) {
    change.undo = put(at);
    loads_.add(op(at).engine, op(at).cost_us);
  } else {
    change.undo = take(at);
    loads_.remove(op(at).engine, op(at).cost_us);
  }
  added_us_.reset();
  for (ProgramPoint reload : reloads) add_events(reload);
  if (inserted) add_events(at);
  journal_.push_back(change);
}

// Leaves what the opposite change would leave, also the order of the extras and the rounding of sums of times.
void RematSchedule::take_back(const Change& change) {
  const ProgramPoint at = change.at;
  if (change.inserted) {
    take_back_put(at, change.undo);
    loads_.remove(op(at).engine, op(at).cost_us);
  } else {
    take_back_take(at, change.undo);
    loads_.add(op(at).engine, op(at).cost_us);
  }
  added_us_.reset();
  for (; noted_.size() > change.events; noted_.pop_back()) note_event(noted_.back().event, !noted_.back().added);
}

void RematSchedule::insert_alone(ProgramPoint at) { change(at, true); }

void RematSchedule::erase_alone(ProgramPoint at) { change(at, false); }

void RematSchedule::insert(ProgramPoint at) {
  if (is_reload(at.op()) && !is_offloaded(at.op()))
    insert_alone({offload_position(at.op(), at.position()), offload_of(at.op())});
  insert_alone(at);
}

void RematSchedule::erase(ProgramPoint at) {
  erase_alone(at);
  if (is_reload(at.op()) && !is_in_schedule(at.op()))
    erase_alone({last_position(offload_of(at.op())), offload_of(at.op())});
}

void RematSchedule::make_synchronous(int32_t offload) {
  ProgramPoint now{last_position(offload), offload}, synchronous{producer(copied(offload)), offload};
  if (now == synchronous) return;
  erase_alone(now);
  insert_alone(synchronous);
}

void RematSchedule::rewind(size_t mark) {
  while (journal_.size() > mark) {
    take_back(journal_.back());
    journal_.pop_back();
  }
  if (mark == 0) added_us_ = rewound_us_;
}

void RematSchedule::forget_journal() {
  journal_.clear();
  noted_.clear();
  forget_additions();
  rewound_us_ = added_us_;
}

// The added time by engine loads, with a remat or reload `at` of a value that base op `position`, or a remat before it,
// reads.
double RematSchedule::added_us_with(ProgramPoint at, int32_t position) const {
  EngineLoads loads = loads_;
  loads.add(op(at).engine, op(at).cost_us);
  if (!is_reload(at.op())) return loads.added_us();
  double stall_us = op(at).cost_us - (clock_us(position) - clock_us(at.position() + 1));
  loads.add(Engine::Compute, std::max(0.0, stall_us));
  if (!is_offloaded(at.op())) loads.add(Engine::ToHost, to_host_us(at.op()));
  return loads.added_us();
}

// The remat or reload that makes a value which is gone available again before `position` for less time; {0, -1} where
// neither can, or one already does.
ProgramPoint RematSchedule::cheaper_producer(int32_t value, int32_t position, ProgramPoint last_use) const {
  ProgramPoint remat{position, producer(value)};
  int32_t reload = reload_of(value);
  bool may_remat = may_insert(remat);
  if (reload < 0) return may_remat ? remat : from_the_start;
  ProgramPoint reloaded = unhurried(reload, position, last_use);
  if (has(reloaded)) return from_the_start;
  if (!may_insert(reloaded)) return may_remat ? remat : from_the_start;
  return may_remat && added_us_with(remat, position) <= added_us_with(reloaded, position) ? remat : reloaded;
}

bool RematSchedule::extend(Chain& chain, int32_t max_ops, llvm::function_ref<bool()> is_worth_it) {
  const ProgramPoint at = chain.at_;
  if (is_copy(at.op())) {
    if (std::exchange(chain.ops_, 1) == 0) insert(at);
    return true;
  }
  if (chain.cut_off_) rewind(*std::exchange(chain.cut_off_, std::nullopt));
  llvm::SmallVector<int32_t, 16> wanted;
  wanted.swap(chain.wanted_);
  max_ops -= chain.ops_;
  while (!wanted.empty()) {
    const size_t changes = mark();
    auto nearest = std::max_element(wanted.begin(), wanted.end());
    ProgramPoint now{at.position(), *nearest};
    wanted.erase(nearest);
    const size_t others = wanted.size();
    int32_t ops = 1;
    for (int32_t v : op(now).reads) {
      if (producer(v) < 0) continue;
      if (static_cast<int32_t>(wanted.size()) >= max_ops - ops) {
        if (chain.cut_off_ || is_alive(v, now)) continue;
        chain.cut_off_ = changes;
        chain.wanted_.assign(wanted.begin(), wanted.begin() + others);
        chain.wanted_.push_back(now.op());
        continue;
      }
      if (is_alive(v, now)) continue;
      ProgramPoint again = cheaper_producer(v, at.position(), last_use(v, now));
      if (again == from_the_start || llvm::is_contained(wanted, again.op())) continue;
      if (is_reload(again.op())) {
        insert(again);
        ++ops;
      } else {
        wanted.push_back(again.op());
      }
    }
    max_ops -= ops;
    if (!chain.cut_off_) chain.ops_ += ops;
    insert(now);
    if (!is_worth_it()) return false;
  }
  return true;
}

void RematSchedule::erase_with_unread(ProgramPoint at) {
  erase(at);
  for (int32_t v : op(at).reads) {
    if (producer(v) < 0) continue;
    ProgramPoint source = made(v, at);
    if (source.position() != source.op() && !is_read(source)) erase_with_unread(source);
  }
}

}  // namespace plimsoll::remat
