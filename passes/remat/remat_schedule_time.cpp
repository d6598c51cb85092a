#include "passes/remat/remat_schedule.h"

#include "ir/machine/duplex_link.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// The time goes from one event of a copy or remat to the next, because the time of the base ops in between is known
// from the start. Events are sorted in when the time is asked for, and what happened before the first change is known.

namespace plimsoll::remat {
namespace {

constexpr size_t events_between_marks = 64;

}  // namespace

EngineLoads::EngineLoads(const RematProblem& problem)
    : shares_(problem.duplex_shares), interference_(problem.copy_interference) {
  for (const RematOp& op : problem.ops) {
    compute_us_ += problem.compute_us(op);
    if (op.engine != Engine::Compute) (op.engine == Engine::ToHost ? to_host_us_ : to_device_us_) += op.cost_us;
  }
}

void EngineLoads::change(Engine engine, double us, double interference_us) {
  placed_us_ += us;
  if (engine == Engine::Compute) {
    remat_us_ += us;
  } else {
    (engine == Engine::ToHost ? to_host_us_ : to_device_us_) += us;
    copied_us_ += us;
    remat_us_ += interference_us;
  }
}

double EngineLoads::added_us() const {
  return std::max(remat_us_, min_copying_us(to_host_us_, to_device_us_, shares_) - compute_us_) + hidden_price_us();
}

double RematSchedule::added_us() const {
  if (is_all_compute()) return loads_.added_us();
  if (!added_us_) added_us_ = std::max(loads_.hidden_price_us() + stalled_and_remat_us(), loads_.added_us());
  if (journal_.empty()) rewound_us_ = added_us_;
  return *added_us_;
}

llvm::SmallVector<RematSchedule::Event, 2> RematSchedule::events_of(ProgramPoint extra) const {
  if (is_offload(extra.op())) {
    const int32_t made_by = producer(copied(extra.op()));
    return {{{made_by, made_by}, EventKind::Made, extra.op()}, {extra, EventKind::Offloaded, extra.op()}};
  }
  if (is_reload(extra.op())) {
    llvm::SmallVector<Event, 2> events{{extra, EventKind::Reload, extra.op()}};
    if (ProgramPoint use = next_use(copied(extra.op()), extra); use != none())
      events.push_back({use, EventKind::Needed, extra.op()});
    return events;
  }
  if (op(extra).engine != Engine::Compute) return {};
  return {{extra, EventKind::Remat, extra.op()}};
}

void RematSchedule::add_events(ProgramPoint extra) {
  if (is_all_compute()) return;
  for (const Event& event : events_of(extra)) keep_event(event, true);
}

void RematSchedule::drop_events(ProgramPoint extra) {
  if (is_all_compute()) return;
  const llvm::SmallVector<Event, 2> events = events_of(extra);
  for (const Event& event : llvm::reverse(events)) keep_event(event, false);
}

// Notes the event for as long as the change that it comes from may be undone.
void RematSchedule::keep_event(const Event& event, bool added) {
  noted_.push_back({event, added});
  note_event(event, added);
}

// Most changes are taken back in reverse before anybody asks for the time.
void RematSchedule::note_event(const Event& event, bool added) {
  if (!event_changes_.empty() && event_changes_.back().added != added && event_changes_.back().event == event)
    event_changes_.pop_back();
  else
    event_changes_.push_back({event, added});
}

void RematSchedule::settle_events() const {
  if (event_changes_.empty()) return;
  std::stable_sort(event_changes_.begin(), event_changes_.end(),
                   [](const EventChange& a, const EventChange& b) { return a.event < b.event; });
  const auto first = std::lower_bound(events_.begin(), events_.end(), event_changes_.front().event);
  go_back(static_cast<size_t>(first - events_.begin()));
  settled_.clear();
  auto old = first;
  for (auto change = event_changes_.begin(); change != event_changes_.end(); ++change) {
    if (std::next(change) != event_changes_.end() && std::next(change)->event == change->event) continue;
    const auto place = std::lower_bound(old, events_.end(), change->event);
    settled_.insert(settled_.end(), old, place);
    old = place != events_.end() && *place == change->event ? std::next(place) : place;
    if (change->added) settled_.push_back(change->event);
  }
  const auto in_place = std::min<ptrdiff_t>(old - first, static_cast<ptrdiff_t>(settled_.size()));
  const auto left = std::copy_n(settled_.begin(), in_place, first);
  if (left != old)
    events_.erase(left, old);
  else
    events_.insert(old, settled_.begin() + in_place, settled_.end());
  event_changes_.clear();
}

// The reloads whose next use may change when something is inserted or erased at `at`.
llvm::SmallVector<ProgramPoint, 8> RematSchedule::reloads_ahead(ProgramPoint at) const {
  llvm::SmallVector<ProgramPoint, 8> reloads;
  if (!has_copies()) return reloads;
  auto add = [&](int32_t value) {
    int32_t reload = reload_of(value);
    if (reload < 0) return;
    if (ProgramPoint ahead = latest_before(reload, at); ahead != from_the_start) reloads.push_back(ahead);
  };
  for (int32_t v : op(at).reads) add(v);
  for (int32_t v : op(at).writes) add(v);
  return reloads;
}

// To the last mark that is not behind the event.
void RematSchedule::go_back(size_t event) const {
  while (!marks_.empty() && marks_.back().event > event) marks_.pop_back();
}

double RematSchedule::stalled_and_remat_us() const {
  settle_events();
  memory().count_steps(static_cast<int64_t>(events_.size()));
  if (marks_.empty()) {
    clock_.restart(problem().duplex_shares, problem().copy_interference);
    marks_.push_back({0, 0, 0, clock_.mark()});
  }
  clock_.rewind(marks_.back().clock);
  for (; issued_.size() > marks_.back().issued; issued_.pop_back())
    places_[issued_.back().copy] = issued_.back().place_before;
  double later_us = marks_.back().later_us;
  for (size_t i = marks_.back().event; i < events_.size(); ++i) {
    if (i == marks_.back().event + events_between_marks) marks_.push_back({i, later_us, issued_.size(), clock_.mark()});
    const Event& event = events_[i];
    const bool ahead = event.kind == EventKind::Needed || event.kind == EventKind::Remat;
    const double takes_us = cost_us(event.id);
    clock_.set_now_us(later_us + clock_us(event.at.position() + (ahead ? 0 : 1)));
    switch (event.kind) {
      case EventKind::Remat: later_us += takes_us; break;
      case EventKind::Needed: later_us += clock_.wait_for(Engine::ToDevice, places_[copy_index(event.id)]); break;
      case EventKind::Offloaded: later_us += clock_.wait_for(Engine::ToHost, places_[copy_index(event.id)]); break;
      case EventKind::Made:
      case EventKind::Reload: {
        const auto copy = static_cast<size_t>(copy_index(event.id));
        issued_.push_back({copy, places_[copy]});
        places_[copy] = clock_.issue(event.kind == EventKind::Made ? Engine::ToHost : Engine::ToDevice, takes_us);
        later_us += problem().copy_interference.us(takes_us);
        break;
      }
    }
  }
  clock_.set_now_us(clock().back() + later_us);
  return clock_.through_us() - clock().back();
}

}  // namespace plimsoll::remat
