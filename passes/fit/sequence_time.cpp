#include "passes/fit/sequence.h"

#include <algorithm>
#include <tuple>

// The three channels along a sequence, from one event of a copy or a repeat to the next; what base ops take in between is known.
// The channels take copies in the order they are issued.

namespace plimsoll::fit {
namespace {

enum class Kind : uint8_t { Needed, Repeat, Made, Stored, Fetch };  // in this order at one moment

struct Event {
  Moment at;
  Kind kind;
  int32_t id;
  int32_t extra;  // its index
  bool operator<(const Event& other) const { return std::tie(at, kind, id) < std::tie(other.at, other.kind, other.id); }
};

}  // namespace

double Sequence::added_us() const {
  if (is_all_compute()) return loads_.added_us();
  if (!added_us_) added_us_ = std::max(loads_.hidden_price_us() + stalled_and_repeated_us(), loads_.added_us());
  if (journal_.empty()) rewound_us_ = added_us_;
  return *added_us_;
}

double Sequence::stalled_and_repeated_us() const {
  std::vector<Event> events;
  events.reserve(2 * extras_.size());
  for (size_t i = 0; i < extras_.size(); ++i) {
    const Moment at = extras_[i];
    const int32_t index = static_cast<int32_t>(i);
    if (!is_copy(at.op)) {
      if (op(at).channel == Channel::Compute) events.push_back({at, Kind::Repeat, at.op, index});
    } else if (is_store(at.op)) {
      int32_t maker = producer(copied(at.op));
      events.push_back({{maker, maker}, Kind::Made, at.op, index});
      events.push_back({at, Kind::Stored, at.op, index});
    } else {
      events.push_back({at, Kind::Fetch, at.op, index});
      if (Moment use = next_use(copied(at.op), at); use != none()) events.push_back({use, Kind::Needed, at.op, index});
    }
  }
  std::sort(events.begin(), events.end());
  memory_.count_steps(static_cast<int64_t>(16 * events.size()));
  double later_us = 0, to_host_us = 0, to_device_us = 0;  // how much later compute is; when the channels are through
  std::vector<double> finish_us(extras_.size(), 0);
  for (const Event& event : events) {
    const size_t extra = static_cast<size_t>(event.extra);
    const Moment copy = extras_[extra];
    const bool ahead = event.kind == Kind::Needed || event.kind == Kind::Repeat;
    const double now_us = later_us + clock_us(event.at.stage + (ahead ? 0 : 1));
    switch (event.kind) {
      case Kind::Repeat: later_us += op(copy).cost_us; break;
      case Kind::Needed:
      case Kind::Stored: later_us += std::max(0.0, finish_us[extra] - now_us); break;
      case Kind::Made: finish_us[extra] = to_host_us = std::max(to_host_us, now_us) + op(copy).cost_us; break;
      case Kind::Fetch: {
        int32_t store = occurrences_[static_cast<size_t>(store_of(copy.op))].back().index;
        double stored_us = finish_us[static_cast<size_t>(store)];
        finish_us[extra] = to_device_us = std::max({to_device_us, now_us, stored_us}) + op(copy).cost_us;
        break;
      }
    }
  }
  return std::max({clock_us_.back() + later_us, to_host_us, to_device_us}) - clock_us_.back();
}

}  // namespace plimsoll::fit
