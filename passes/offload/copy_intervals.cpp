#include "passes/offload/copy_intervals.h"

#include <algorithm>
#include <cassert>
#include <limits>

// In each round, every copy is issued earlier, or waited for later, until compute would not wait for it in the present
// timeline or there are no bytes left. Copies to the device are served in their order, copies to the host against it,
// because where bytes run out at one place it costs least to wait there for the copies that started earliest. Then
// every interval gives back what it does not use, which others may need in the next round. Each copy is assumed to take
// the time that it took in the present timeline.

namespace plimsoll::remat {
namespace {

constexpr int max_rounds = 64;
constexpr double min_gain = 1e-4;  // share of the time that a round must save to count
constexpr int patience = 3;        // rounds in a row that may not count; where a wait goes shows in the next timeline

// The first op from `from` on where compute is at `us` or later; the end if there is none.
int32_t first_from(const std::vector<double>& clock, int32_t from, double us) {
  auto begin = clock.begin() + from;
  if (*begin >= us) return from;
  auto at = std::lower_bound(begin, clock.end(), us);
  return static_cast<int32_t>(std::min(at, std::prev(clock.end())) - clock.begin());
}

// The last op from `from` on where compute is at `us` or earlier; `from` if there is none.
int32_t last_until(const std::vector<double>& clock, int32_t from, double us) {
  while (static_cast<size_t>(from) + 1 < clock.size() && clock[from + 1] <= us) ++from;
  return from;
}

}  // namespace

CopyIntervals::CopyIntervals(const RematProblem& problem)
    : problem_(&problem), work_(problem), lives_(problem.value_bytes.size()) {
  collect_lives();
  make_tight();
  run();
  recount();
}

void CopyIntervals::collect_lives() {
  for (int32_t o = 0; o < problem_->op_count(); ++o) {
    for (int32_t v : problem_->ops[o].reads) life(v).last = o;
    for (int32_t v : problem_->ops[o].writes) life(v) = {o, o, -1, 0};
  }
  for (size_t v = 0; v < lives_.size(); ++v)
    if (problem_->live_out[v]) lives_[v].last = problem_->op_count();
  for (int32_t o = 0; o < problem_->op_count(); ++o)
    for (const InPlaceReuse& pair : problem_->ops[o].in_place)
      if (life(pair.read).last == o) life(pair.read).reused += bytes(pair.written);
}

void CopyIntervals::make_tight() {
  const int32_t end = problem_->op_count();
  constexpr int32_t unread = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> first_read(lives_.size(), unread);
  for (size_t v = 0; v < lives_.size(); ++v)
    if (problem_->live_out[v]) first_read[v] = end;
  for (int32_t o = end - 1; o >= 0; --o) {
    const RematOp& op = problem_->ops[o];
    if (op.engine != Engine::Compute) {
      int32_t done = op.engine == Engine::ToDevice ? op.remat_until : o + 1;
      for (int32_t v : op.writes) done = std::min(done, first_read[v]);
      intervals_.push_back({o, o, done == unread ? o + 1 : done});
      assert(intervals_.back().done > o && "a copy is through before what it reads is overwritten");
    }
    for (int32_t v : op.reads) first_read[v] = o;
  }
  std::reverse(intervals_.begin(), intervals_.end());
}

int32_t CopyIntervals::earliest_issue(size_t copy) const {
  int32_t earliest = op(intervals_[copy]).not_before;
  for (int32_t v : op(intervals_[copy]).reads) earliest = std::max(earliest, life(v).made + 1);
  for (int32_t source : work_.copies[copy].after) earliest = std::max(earliest, intervals_[source].done);
  return earliest;
}

// A copy to the host is waited for before the copies that read its result are issued.
int32_t CopyIntervals::latest_done(size_t copy) const {
  int32_t latest = problem_->op_count();
  for (int32_t reader : work_.copies[copy].before) latest = std::min(latest, intervals_[reader].issue);
  return latest;
}

void CopyIntervals::recount() {
  for (Life& life : lives_) life.held = -1;
  std::vector<int32_t> from(lives_.size());
  for (size_t v = 0; v < lives_.size(); ++v) from[v] = std::max(lives_[v].made, 0);
  for (const CopyInterval& interval : intervals_) {
    if (op(interval).engine == Engine::ToHost)
      for (int32_t v : op(interval).reads) life(v).held = std::max(life(v).held, interval.done - 1);
    else
      for (int32_t v : op(interval).writes) from[v] = interval.issue;
  }
  std::vector<int64_t> change(problem_->ops.size() + 2, 0);
  for (size_t v = 0; v < lives_.size(); ++v) {
    int32_t until = std::max(lives_[v].last, lives_[v].held);
    if (until < from[v]) continue;
    change[from[v]] += problem_->value_bytes[v];
    change[until + 1] -= problem_->value_bytes[v];
  }
  live_.assign(problem_->ops.size() + 1, 0);
  int64_t alive = 0;
  for (size_t o = 0; o < live_.size(); ++o) {
    alive += change[o];
    live_[o] = alive + (o < problem_->ops.size() ? problem_->ops[o].workspace_bytes : 0);
  }
  for (const Life& life : lives_)
    if (life.last > life.held) live_[life.last] -= life.reused;
}

int64_t CopyIntervals::peak_bytes() const { return *std::max_element(live_.begin(), live_.end()); }

// The bytes that are alive at `at` only because the copy to the host runs on beyond it.
int64_t CopyIntervals::held_bytes(const CopyInterval& interval, int32_t at) const {
  int64_t sum = 0;
  for (int32_t v : op(interval).reads) {
    if (at <= life(v).held) continue;
    if (at > life(v).last) sum += bytes(v);
    if (at == life(v).last) sum += life(v).reused;
  }
  return sum;
}

// The latest time at which each copy to the device may start so that all arrive by `needed_us` at their `done`.
void CopyIntervals::latest_starts(const std::vector<double>& needed_us) {
  latest_us_.resize(intervals_.size());
  double next = std::numeric_limits<double>::infinity();
  for (size_t w = intervals_.size(); w-- > 0;) {
    if (work_.copies[w].engine != Engine::ToDevice) continue;
    next = std::min(next, needed_us[intervals_[w].done]) - (line_.finish_us[w] - line_.start_us[w]);
    latest_us_[w] = next;
  }
}

void CopyIntervals::widen_to_device(int64_t limit) {
  latest_starts(line_.arrive_us);
  int32_t previous = 0, in_time = 0;
  for (size_t w = 0; w < intervals_.size(); ++w) {
    CopyInterval& interval = intervals_[w];
    if (work_.copies[w].engine != Engine::ToDevice) continue;
    in_time = last_until(line_.leave_us, in_time, latest_us_[w]);
    if (interval.issue > in_time) {
      const int32_t wanted = std::max({previous, earliest_issue(w), in_time});
      int64_t needs = 0;
      for (int32_t v : op(interval).writes) needs += bytes(v);
      for (; interval.issue > wanted && live_[interval.issue - 1] + needs <= limit; --interval.issue)
        live_[interval.issue - 1] += needs;
    }
    previous = interval.issue;
  }
}

void CopyIntervals::widen_to_host(int64_t limit) {
  for (size_t w = intervals_.size(); w-- > 0;) {
    CopyInterval& interval = intervals_[w];
    if (work_.copies[w].engine != Engine::ToHost) continue;
    // Without this wait, compute would be earlier by its length everywhere after it.
    const size_t done = static_cast<size_t>(interval.done);
    const int32_t wanted =
        first_from(line_.arrive_us, interval.done, line_.finish_us[w] + line_.leave_us[done] - line_.arrive_us[done]);
    for (const int32_t latest = std::min(wanted, latest_done(w)); interval.done < latest; ++interval.done) {
      int64_t& live = live_[interval.done];
      int64_t more = held_bytes(interval, interval.done);
      if (live + more > limit) break;
      live += more;
      for (int32_t v : op(interval).reads) life(v).held = std::max(life(v).held, interval.done);
    }
  }
}

// Shortens each interval by what does not make compute earlier.
void CopyIntervals::shorten() {
  latest_starts(line_.leave_us);
  int32_t in_time = 0;
  for (size_t w = 0; w < intervals_.size(); ++w) {
    CopyInterval& interval = intervals_[w];
    if (work_.copies[w].engine == Engine::ToDevice) {
      in_time = last_until(line_.leave_us, in_time, latest_us_[w]);
      interval.issue = std::clamp(in_time, interval.issue, interval.op);
    } else {
      interval.done = std::min(first_from(line_.arrive_us, interval.op + 1, line_.finish_us[w]), interval.done);
    }
  }
}

void CopyIntervals::widen(int64_t limit, FirstServed first, double enough_us) {
  std::vector<CopyInterval> best = intervals_;
  double best_us = line_.total_us;
  auto keep_if_best = [&] {
    if (line_.total_us > best_us) return;
    best = intervals_;
    best_us = line_.total_us;
  };
  for (int round = 0, idle = 0; round < max_rounds && idle < patience && best_us > enough_us; ++round) {
    const double before_us = best_us;
    if (first == FirstServed::ToHost) widen_to_host(limit);
    widen_to_device(limit);
    if (first == FirstServed::ToDevice) widen_to_host(limit);
    run();
    keep_if_best();
    shorten();
    run();
    keep_if_best();
    recount();
    idle = best_us < before_us * (1 - min_gain) ? 0 : idle + 1;
  }
  intervals_ = std::move(best);
  run();
  recount();
}

}  // namespace plimsoll::remat
