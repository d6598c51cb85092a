#include "passes/offload/overlap.h"

#include "ir/machine/duplex_link.h"
#include "passes/offload/copy_intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

// Each copy can start once the compute ahead of it is done, and some compute is left once it is through. An engine that
// may interrupt copies and always serves the one with most compute left after it ends earliest (Jackson's preemptive
// schedule, Carlier 1982). Collectives count with their time on the link, and with what computing loses to them. For
// both engines together, take the time from when both have work until the compute that is left after copies to the
// device begins. The work that neither engine can do outside of that time takes at least as long as both take side by
// side. Adding ops to a schedule only makes all of it longer.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double infinite = std::numeric_limits<double>::infinity();

struct Job {
  double from_us, takes_us, left_us;  // left: compute after it
};

// When the last job is through, and the compute after it.
double preemptive_us(std::vector<Job> jobs) {
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.from_us < b.from_us; });
  std::priority_queue<std::pair<double, double>> waiting;  // compute left after a job, time it still takes
  double now_us = 0, end_us = 0;
  for (size_t next = 0; next < jobs.size() || !waiting.empty();) {
    if (waiting.empty()) now_us = std::max(now_us, jobs[next].from_us);
    for (; next < jobs.size() && jobs[next].from_us <= now_us; ++next)
      waiting.push({jobs[next].left_us, jobs[next].takes_us});
    auto [left_us, takes_us] = waiting.top();
    waiting.pop();
    const double until_us = next < jobs.size() ? std::min(now_us + takes_us, jobs[next].from_us) : now_us + takes_us;
    if (until_us < now_us + takes_us)
      waiting.push({left_us, takes_us - (until_us - now_us)});
    else
      end_us = std::max(end_us, until_us + left_us);
    now_us = until_us;
  }
  return end_us;
}

// Bounds for some copies of one engine: their earliest start, their time in all, the minimum compute left after each.
struct Share {
  double from_us = infinite, takes_us = 0, left_us = infinite;

  void add(const Job& job) {
    from_us = std::min(from_us, job.from_us);
    takes_us += job.takes_us;
    left_us = std::min(left_us, job.left_us);
  }
};

// When both engines are through, and the compute after them; 0 where this bounds no better than each engine alone.
double together_us(const Share& to_host, const Share& to_device, const DuplexShares& shares) {
  const double from_us = std::max(to_host.from_us, to_device.from_us);
  const double to_device_us = to_device.takes_us - (from_us - to_device.from_us);
  const double to_host_us = to_host.takes_us - (from_us - to_host.from_us) - to_device.left_us;
  if (to_device_us <= 0 || to_host_us <= 0) return 0;
  return from_us + min_copying_us(to_host_us, to_device_us, shares) + to_device.left_us;
}

// Pairs all copies of one engine with those copies of the other that start last, or have most compute left after them.
double together_us(std::vector<Job> to_host, std::vector<Job> to_device, const DuplexShares& shares) {
  Share all_to_host, all_to_device, last, urgent;
  for (const Job& job : to_host) all_to_host.add(job);
  for (const Job& job : to_device) all_to_device.add(job);
  double end_us = 0;
  std::stable_sort(to_host.begin(), to_host.end(), [](const Job& a, const Job& b) { return a.from_us > b.from_us; });
  for (const Job& job : to_host) {
    last.add(job);
    end_us = std::max(end_us, together_us(last, all_to_device, shares));
  }
  std::stable_sort(to_device.begin(), to_device.end(),
                   [](const Job& a, const Job& b) { return a.left_us > b.left_us; });
  for (const Job& job : to_device) {
    urgent.add(job);
    end_us = std::max(end_us, together_us(all_to_host, urgent, shares));
  }
  return end_us;
}

// The earliest time at which compute gets to each op, and to the end: after the compute ahead of it and the copies that
// this waits for.
std::vector<double> earliest_clock(const EngineWork& work, llvm::ArrayRef<CopyInterval> intervals) {
  std::vector<double> due_us(work.compute_us.size() + 1,
                             0);  // by op: time of the copies to the device that it waits for
  for (size_t c = 0; c < work.copies.size(); ++c)
    if (work.copies[c].engine == Engine::ToDevice) due_us[intervals[c].done] += work.copies[c].cost_us;
  std::vector<double> clock_us;
  double now_us = 0, copied_us = 0;
  for (size_t o = 0; o < due_us.size(); ++o) {
    copied_us += due_us[o];
    now_us = std::max(now_us, copied_us);
    clock_us.push_back(now_us);
    if (o < work.compute_us.size()) now_us += work.compute_us[o];
  }
  return clock_us;
}

}  // namespace

double min_total_us(const RematProblem& problem) {
  const EngineWork work(problem);
  const CopyIntervals tight(problem);
  const std::vector<double> clock_us = earliest_clock(work, tight.intervals());
  std::vector<double> ahead_us(1, 0);  // compute, by op
  for (double us : work.compute_us) ahead_us.push_back(ahead_us.back() + us);
  std::vector<double> through_us;  // by copy, at the earliest
  std::vector<Job> to_host, to_device;
  double link_us = 0;
  for (size_t c = 0; c < work.copies.size(); ++c) {
    const EngineWork::Copy& copy = work.copies[c];
    if (copy.engine == Engine::Ranks) {
      link_us += std::max(0.0, copy.cost_us - work.collectives.launch_us);
      through_us.push_back(clock_us[copy.op]);
      continue;
    }
    const bool leaves = copy.engine == Engine::ToHost;
    double from_us = clock_us[leaves ? copy.op : tight.earliest_issue(c)];
    for (int32_t earlier : copy.after) from_us = std::max(from_us, through_us[earlier]);
    through_us.push_back(from_us + copy.cost_us);
    const double left_us = leaves ? 0 : ahead_us.back() - ahead_us[tight.intervals()[c].done];
    (leaves ? to_host : to_device).push_back({from_us, copy.cost_us, left_us});
  }
  return std::max({clock_us.back(), work.total_compute_us(), link_us,
                   together_us(to_host, to_device, problem.duplex_shares), preemptive_us(to_host),
                   preemptive_us(to_device)});
}

namespace {

// What has crossed the link by some op at most: until compute leaves an op, no more was copied to the device for later
// than had room beside what is alive there, and what is still on its way to the host has room as well. So from one op
// to another passes at least the time of all copies due between them less what had room.
class RoomBound {
 public:
  RoomBound(const RematProblem& problem, int64_t limit_bytes)
      : work_(problem), tight_(problem), end_(problem.ops.size()) {
    limit_bytes = std::max(limit_bytes, tight_.peak_bytes());
    for (int64_t live : tight_.live_bytes()) room_.push_back(static_cast<double>(limit_bytes - live));
    collect_copies();
  }

  double total_us() {
    double now_us = 0, lost_us = 0, computed_us = 0;
    for (size_t u = 0; u <= end_; ++u) {
      if (u > 0) now_us += work_.compute_us[u - 1], computed_us += work_.compute_us[u - 1];
      lost_us += lost_us_[u];
      now_us = std::max(now_us, computed_us + lost_us);
      for (const Mark& mark : marks_) now_us = std::max(now_us, from(mark, u));
      consider(u, now_us);
    }
    for (const Mark& mark : marks_)
      now_us = std::max(now_us, mark.us + min_copying_us(leaves_us_[end_] - mark.left_us,
                                                         std::max(0.0, due_us_[end_] - mark.arrived_us), work_.shares));
    return now_us;
  }

 private:
  // An op, when compute leaves it at the earliest, and the copies of each engine until then: that have their place
  // ahead of it, and to the device also those for which there was room.
  struct Mark {
    double us = 0, left_us = 0, arrived_us = 0;
  };
  static constexpr size_t max_marks = 64;

  // In times of the fastest copy of each engine for its bytes.
  void collect_copies() {
    leaves_us_.assign(end_ + 1, 0);
    due_us_.assign(end_ + 1, 0);
    placed_us_.assign(end_ + 1, 0);
    lost_us_.assign(end_ + 1, 0);
    for (Engine engine : {Engine::ToHost, Engine::ToDevice}) {
      double us_per_byte = infinite;
      for (size_t c = 0; c < work_.copies.size(); ++c)
        if (const int64_t bytes = tight_.moved_bytes(c); work_.copies[c].engine == engine && bytes > 0)
          us_per_byte = std::min(us_per_byte, work_.copies[c].cost_us / static_cast<double>(bytes));
      (engine == Engine::ToHost ? to_host_us_ : to_device_us_) = std::isfinite(us_per_byte) ? us_per_byte : 0;
    }
    for (size_t c = 0; c < work_.copies.size(); ++c) {
      const EngineWork::Copy& copy = work_.copies[c];
      if (copy.engine == Engine::Ranks) continue;
      const CopyInterval& interval = tight_.intervals()[c];
      const auto bytes = static_cast<double>(tight_.moved_bytes(c));
      lost_us_[std::min<size_t>(interval.op + 1, end_)] += work_.interference.us(copy.cost_us);
      if (copy.engine == Engine::ToHost) {
        leaves_us_[interval.op + 1] += bytes * to_host_us_;
      } else {
        due_us_[interval.done] += bytes * to_device_us_;
        placed_us_[interval.op + 1] += bytes * to_device_us_;
      }
    }
    for (std::vector<double>* sums : {&leaves_us_, &due_us_, &placed_us_})
      std::partial_sum(sums->begin(), sums->end(), sums->begin());
  }

  double from(const Mark& mark, size_t u) const {
    const double to_host_us = leaves_us_[u] - mark.left_us - room_[u] * to_host_us_;
    const double to_device_us = due_us_[u] - mark.arrived_us;
    if (to_host_us <= 0 && to_device_us <= 0) return 0;
    return mark.us + min_copying_us(std::max(0.0, to_host_us), std::max(0.0, to_device_us), work_.shares);
  }

  // Of each stretch of ops, the two from which most is left to copy.
  void consider(size_t u, double now_us) {
    const double room_us = u > 0 ? room_[u - 1] * to_device_us_ : 0;
    const Mark mark{now_us, leaves_us_[u], placed_us_[u] + room_us};
    const size_t stretch = u * max_marks / (end_ + 1);
    if (stretch != stretch_ || marks_.empty()) {
      stretch_ = stretch;
      marks_.insert(marks_.end(), 2, mark);
      return;
    }
    Mark &most_to_host = marks_.end()[-2], &most_to_device = marks_.end()[-1];
    if (mark.us - mark.left_us > most_to_host.us - most_to_host.left_us) most_to_host = mark;
    if (mark.us - mark.arrived_us > most_to_device.us - most_to_device.arrived_us) most_to_device = mark;
  }

  const EngineWork work_;
  const CopyIntervals tight_;
  size_t end_;
  std::vector<double> room_;                            // by op: bytes
  double to_host_us_ = 0, to_device_us_ = 0;            // for a byte
  std::vector<double> leaves_us_, due_us_, placed_us_;  // sums of copies ahead of an op, or due by it
  std::vector<double> lost_us_;                         // by op: to copies placed right before it
  std::vector<Mark> marks_;
  size_t stretch_ = 0;
};

}  // namespace

double min_total_us_within(const RematProblem& problem, int64_t limit_bytes) {
  return RoomBound(problem, limit_bytes).total_us();
}

}  // namespace plimsoll
