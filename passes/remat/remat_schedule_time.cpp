#include "passes/remat/remat_schedule.h"

#include <algorithm>

// The three channels along a sequence, from one event of a copy or a repeat to the next; what base ops take in between is known.
// The channels take copies in the order they are issued. Events stay sorted while the sequence changes.

namespace plimsoll::fit {

double Sequence::added_us() const {
  if (is_all_compute()) return loads_.added_us();
  if (!added_us_) added_us_ = std::max(loads_.hidden_price_us() + stalled_and_repeated_us(), loads_.added_us());
  if (journal_.empty()) rewound_us_ = added_us_;
  return *added_us_;
}

llvm::SmallVector<Sequence::Event, 2> Sequence::events_of(Moment extra) const {
  if (is_store(extra.op)) {
    int32_t maker = producer(copied(extra.op));
    return {{{maker, maker}, EventKind::Made, extra.op}, {extra, EventKind::Stored, extra.op}};
  }
  if (is_fetch(extra.op)) {
    llvm::SmallVector<Event, 2> events{{extra, EventKind::Fetch, extra.op}};
    if (Moment use = next_use(copied(extra.op), extra); use != none()) events.push_back({use, EventKind::Needed, extra.op});
    return events;
  }
  if (op(extra).channel != Channel::Compute) return {};
  return {{extra, EventKind::Repeat, extra.op}};
}

void Sequence::add_events(Moment extra) {
  if (is_all_compute()) return;
  for (const Event& event : events_of(extra)) events_.insert(std::lower_bound(events_.begin(), events_.end(), event), event);
}

void Sequence::drop_events(Moment extra) {
  if (is_all_compute()) return;
  for (const Event& event : events_of(extra)) events_.erase(std::lower_bound(events_.begin(), events_.end(), event));
}

// Whose next use may be another one once there is, or is no more, something at `at`.
llvm::SmallVector<Moment, 8> Sequence::fetches_ahead(Moment at) const {
  llvm::SmallVector<Moment, 8> fetches;
  if (copies_.empty()) return fetches;
  auto add = [&](int32_t value) {
    int32_t fetch = fetch_of(value);
    if (fetch < 0) return;
    if (Moment ahead = latest_before(fetch, at); ahead != from_the_start) fetches.push_back(ahead);
  };
  for (int32_t v : op(at).reads) add(v);
  for (int32_t v : op(at).writes) add(v);
  return fetches;
}

double Sequence::stalled_and_repeated_us() const {
  memory_.count_steps(static_cast<int64_t>(events_.size()));
  bus_.restart(problem_->copy_shares);
  auto place = [&](int32_t copy) -> size_t& { return places_[copy_index(copy)]; };
  double later_us = 0;  // by which compute is
  for (const Event& event : events_) {
    const bool ahead = event.kind == EventKind::Needed || event.kind == EventKind::Repeat;
    const double now_us = later_us + clock_us(event.at.stage + (ahead ? 0 : 1)), takes_us = cost_us_[static_cast<size_t>(event.id)];
    switch (event.kind) {
      case EventKind::Repeat: later_us += takes_us; break;
      case EventKind::Needed: later_us += std::max(0.0, bus_.finish_us(Channel::ToDevice, place(event.id)) - now_us); break;
      case EventKind::Stored: later_us += std::max(0.0, bus_.finish_us(Channel::ToHost, place(event.id)) - now_us); break;
      case EventKind::Made:
      case EventKind::Fetch:
        place(event.id) = bus_.issue(event.kind == EventKind::Made ? Channel::ToHost : Channel::ToDevice, takes_us, now_us);
        later_us += problem_->copy_toll.us(takes_us);
        break;
    }
  }
  return std::max(clock_us_.back() + later_us, bus_.through_us()) - clock_us_.back();
}

}  // namespace plimsoll::fit
