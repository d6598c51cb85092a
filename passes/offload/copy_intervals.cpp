#include "passes/offload/copy_intervals.h"

#include "passes/offload/overlap.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cassert>
#include <limits>

// In each round, every copy is issued earlier, or waited for later, until compute would not wait for it in the present
// timeline or there are no bytes left. Those that are issued earlier are served in their order, those that are waited
// for later against it, because where bytes run out at one place it costs least to wait there for the copies that
// started earliest. Then every interval gives back what it does not use, which others may need in the next round. Each
// copy is assumed to take the time that it took in the present timeline.

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
    : problem_(&problem), work_(std::make_shared<EngineWork>(problem)), lives_(problem.value_bytes.size()) {
  collect_lives();
  make_tight();
  collect_movable();
  run();
  recount();
}

CopyIntervals::CopyIntervals(const CopyIntervals& other, std::vector<CopyInterval> intervals,
                             std::vector<CopyBounds> bounds)
    : problem_(other.problem_),
      work_(other.work_),
      lives_(other.lives_),
      intervals_(std::move(intervals)),
      due_(other.due_),
      bounds_(std::move(bounds)) {
  collect_movable();
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
    if (!op.computes()) {
      int32_t due = op.remat_until;
      for (int32_t v : op.writes) due = std::min(due, first_read[v]);
      intervals_.push_back({o, o, op.engine == Engine::ToDevice && due != unread ? due : o + 1});
      due_.push_back(op.is_collective() ? std::min(due, end) : end);
      assert(intervals_.back().done > o && "a copy is through before what it reads is overwritten");
    }
    for (int32_t v : op.reads) first_read[v] = o;
  }
  std::reverse(intervals_.begin(), intervals_.end());
  std::reverse(due_.begin(), due_.end());
}

int32_t CopyIntervals::earliest_issue(size_t copy) const {
  int32_t earliest = op(intervals_[copy]).not_before;
  for (int32_t v : op(intervals_[copy]).reads) earliest = std::max(earliest, life(v).made + 1);
  for (int32_t source : work_->copies[copy].after) earliest = std::max(earliest, intervals_[source].done);
  if (!bounds_.empty()) earliest = std::max(earliest, bounds_[copy].earliest_issue);
  return earliest;
}

// One that another copy reads is waited for before that is issued.
int32_t CopyIntervals::latest_done(size_t copy) const {
  int32_t latest = bounds_.empty() ? due_[copy] : std::min(due_[copy], bounds_[copy].latest_done);
  for (int32_t reader : work_->copies[copy].before) latest = std::min(latest, intervals_[reader].issue);
  return latest;
}

void CopyIntervals::collect_movable() {
  to_device_issues_.clear(), ranks_issues_.clear(), dones_.clear();
  for (size_t w = 0; w < intervals_.size(); ++w) {
    const Engine engine = work_->copies[w].engine;
    if (engine == Engine::ToDevice) to_device_issues_.push_back(w);
    if (engine == Engine::Ranks && bounds_.empty() && op(intervals_[w]).not_before < intervals_[w].op)
      ranks_issues_.push_back(w);
    if (engine == Engine::ToHost || (engine == Engine::Ranks && bounds_.empty())) dones_.push_back(w);
  }
}

// Does the result of a collective take over the value's bytes?
bool CopyIntervals::reuses(const CopyInterval& interval, int32_t value) const {
  return life(value).last == interval.op &&
         llvm::any_of(op(interval).in_place, [&](const InPlaceReuse& pair) { return pair.read == value; });
}

int64_t CopyIntervals::written_bytes(const CopyInterval& interval) const {
  int64_t sum = op(interval).workspace_bytes;
  for (int32_t v : op(interval).writes) sum += bytes(v);
  return sum;
}

void CopyIntervals::recount() {
  for (Life& life : lives_) life.held = -1;
  std::vector<int32_t>& from = from_;
  std::vector<int64_t>& change = change_;
  from.resize(lives_.size());
  change.assign(problem_->ops.size() + 2, 0);
  auto add = [&](int64_t bytes, int32_t first, int32_t last) {
    change[first] += bytes;
    change[last + 1] -= bytes;
  };
  for (size_t v = 0; v < lives_.size(); ++v) from[v] = std::max(lives_[v].made, 0);
  for (size_t w = 0; w < intervals_.size(); ++w) {
    const CopyInterval& interval = intervals_[w];
    if (work_->copies[w].engine != Engine::ToDevice)
      for (int32_t v : op(interval).reads)
        if (!reuses(interval, v)) life(v).held = std::max(life(v).held, interval.done - 1);
    if (work_->copies[w].engine != Engine::ToHost)
      for (int32_t v : op(interval).writes) from[v] = interval.issue;
    add(op(interval).workspace_bytes, interval.issue, interval.done - 1);
  }
  for (size_t v = 0; v < lives_.size(); ++v) {
    int32_t until = std::max(lives_[v].last, lives_[v].held);
    if (until >= from[v]) add(problem_->value_bytes[v], from[v], until);
  }
  live_.assign(problem_->ops.size() + 1, 0);
  int64_t alive = 0;
  for (size_t o = 0; o < live_.size(); ++o) {
    alive += change[o];
    live_[o] = alive + (o < problem_->ops.size() && work_->computes[o] ? problem_->ops[o].workspace_bytes : 0);
  }
  for (const Life& life : lives_)
    if (life.last > life.held) live_[life.last] -= life.reused;
}

int64_t CopyIntervals::peak_bytes() const { return *std::max_element(live_.begin(), live_.end()); }

// The bytes that are alive at `at` only because the copy runs on beyond it.
int64_t CopyIntervals::held_bytes(const CopyInterval& interval, int32_t at) const {
  int64_t sum = op(interval).workspace_bytes;
  for (int32_t v : op(interval).reads) {
    if (at <= life(v).held || reuses(interval, v)) continue;
    if (at > life(v).last) sum += bytes(v);
    if (at == life(v).last) sum += life(v).reused;
  }
  return sum;
}

// The latest time at which each of the engine's copies may be issued so that all arrive by `needed_us` at their `done`.
// One takes the time since the one before it was through: what stays in its place may be at work between them.
void CopyIntervals::latest_starts(Engine engine, const std::vector<double>& needed_us) {
  latest_us_.resize(intervals_.size());
  double later_us = std::numeric_limits<double>::infinity();
  std::vector<size_t>& movable = by_start_;
  movable.assign(moved_issues(engine).begin(), moved_issues(engine).end());
  const auto starts_earlier = [&](size_t a, size_t b) { return line_.start_us[a] < line_.start_us[b]; };
  if (!llvm::is_sorted(movable, starts_earlier)) llvm::stable_sort(movable, starts_earlier);
  for (size_t i = movable.size(); i-- > 0;) {
    const size_t w = movable[i];
    double from_us = line_.start_us[w];
    if (engine == Engine::Ranks) {
      const double before_us = i == 0 ? 0 : line_.finish_us[movable[i - 1]];
      from_us = std::min(from_us, std::max(before_us, line_.leave_us[intervals_[w].issue]));
    }
    later_us = std::min(later_us, needed_us[intervals_[w].done]) - (line_.finish_us[w] - from_us);
    latest_us_[w] = later_us;
  }
}

void CopyIntervals::widen_issues(Engine engine, int64_t limit) {
  latest_starts(engine, line_.arrive_us);
  int32_t previous = 0, in_time = 0;
  for (size_t w : moved_issues(engine)) {
    CopyInterval& interval = intervals_[w];
    in_time = last_until(line_.leave_us, in_time, latest_us_[w]);
    if (interval.issue > in_time) {
      const int32_t wanted = std::max({previous, earliest_issue(w), in_time});
      const int64_t needs = written_bytes(interval);
      for (; interval.issue > wanted && live_[interval.issue - 1] + needs <= limit; --interval.issue)
        live_[interval.issue - 1] += needs;
    }
    previous = interval.issue;
  }
}

void CopyIntervals::widen_dones(int64_t limit) {
  for (size_t w : llvm::reverse(dones_)) {
    CopyInterval& interval = intervals_[w];
    // Without this wait, compute would be earlier by its length everywhere after it.
    const size_t done = static_cast<size_t>(interval.done);
    const int32_t wanted =
        first_from(line_.arrive_us, interval.done, line_.through_us[w] + line_.leave_us[done] - line_.arrive_us[done]);
    for (const int32_t latest = std::min(wanted, latest_done(w)); interval.done < latest; ++interval.done) {
      int64_t& live = live_[interval.done];
      int64_t more = held_bytes(interval, interval.done);
      if (live + more > limit) break;
      live += more;
      for (int32_t v : op(interval).reads)
        if (!reuses(interval, v)) life(v).held = std::max(life(v).held, interval.done);
    }
  }
}

void CopyIntervals::shorten_issues(Engine engine) {
  latest_starts(engine, line_.leave_us);
  int32_t in_time = 0;
  for (size_t w : moved_issues(engine)) {
    in_time = last_until(line_.leave_us, in_time, latest_us_[w]);
    intervals_[w].issue = std::clamp(in_time, intervals_[w].issue, intervals_[w].op);
  }
}

// Shortens each interval by what does not make compute earlier.
void CopyIntervals::shorten() {
  shorten_issues(Engine::ToDevice);
  shorten_issues(Engine::Ranks);
  for (size_t w : dones_) {
    CopyInterval& interval = intervals_[w];
    const int32_t earliest = bounds_.empty() ? interval.op + 1 : bounds_[w].earliest_done;
    interval.done = std::min(first_from(line_.arrive_us, earliest, line_.through_us[w]), interval.done);
  }
}

void CopyIntervals::wait_for_readers() {
  for (size_t w = intervals_.size(); w-- > 0;)
    if (work_->copies[w].engine == Engine::Ranks) intervals_[w].done = latest_done(w);
  run();
  recount();
}

void CopyIntervals::wait_late() {
  const std::vector<CopyInterval> chosen = intervals_;
  const double chosen_us = line_.total_us;
  for (size_t w = 0; w < intervals_.size(); ++w) {
    if (work_->copies[w].engine != Engine::Ranks) continue;
    CopyInterval& interval = intervals_[w];
    for (const int32_t latest = latest_done(w); interval.done < latest && held_bytes(interval, interval.done) == 0;)
      ++interval.done;
  }
  run();
  if (line_.total_us <= chosen_us) return;
  intervals_ = chosen;
  run();
}

void CopyIntervals::issue_early() {
  const std::vector<CopyInterval> chosen = intervals_;
  const double chosen_us = line_.total_us, earlier_us = chosen_us / shares_out_of_step;
  const int64_t peak = peak_bytes();
  int32_t previous = 0;
  for (size_t w : ranks_issues_) {
    CopyInterval& interval = intervals_[w];
    // At the beginning what is needed at once would share its launch with what is not.
    const double until_us = line_.leave_us[interval.issue] - earlier_us;
    const int32_t in_time = until_us > 0 ? last_until(line_.leave_us, 0, until_us) : interval.issue;
    const int32_t wanted = std::max({previous, earliest_issue(w), in_time});
    const int64_t needs = written_bytes(interval);
    for (; interval.issue > wanted && live_[interval.issue - 1] + needs <= peak; --interval.issue)
      live_[interval.issue - 1] += needs;
    previous = interval.issue;
  }
  run();
  if (line_.total_us > chosen_us) {
    intervals_ = chosen;
    run();
  }
  recount();
}

void CopyIntervals::use_bounds() {
  const auto keep_if_no_slower = [&](auto change) {
    const std::vector<CopyInterval> chosen = intervals_;
    const double chosen_us = line_.total_us;
    change();
    run();
    if (line_.total_us <= chosen_us) return;
    intervals_ = chosen;
    run();
  };
  keep_if_no_slower([&] {
    int32_t previous = 0;
    for (size_t w : to_device_issues_) {
      int32_t& issue = intervals_[w].issue;
      previous = issue = std::min(issue, std::max(previous, earliest_issue(w)));
    }
  });
  keep_if_no_slower([&] {
    for (size_t w : dones_) intervals_[w].done = std::max(intervals_[w].done, latest_done(w));
  });
  recount();
}

void CopyIntervals::give_back() {
  shorten();
  run();
  recount();
}

std::vector<size_t> CopyIntervals::late_copies(llvm::ArrayRef<CopyInterval> wanted) const {
  std::vector<size_t> late;
  const auto waited_us = [&](size_t w) { return line_.through_us[w] - line_.arrive_us[intervals_[w].done]; };
  for (size_t w = 0; w < intervals_.size(); ++w) {
    const CopyInterval& interval = intervals_[w];
    const bool idle = line_.start_us[w] <= line_.leave_us[interval.issue];
    if ((interval.issue > wanted[w].issue && idle) || (interval.done < wanted[w].done && waited_us(w) > 0))
      late.push_back(w);
  }
  llvm::stable_sort(late, [&](size_t a, size_t b) { return waited_us(a) > waited_us(b); });
  return late;
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
    const std::vector<CopyInterval> before = intervals_;
    if (first == FirstServed::Done) widen_dones(limit);
    widen_issues(Engine::ToDevice, limit);
    widen_issues(Engine::Ranks, limit);
    if (first == FirstServed::Issue) widen_dones(limit);
    run();
    keep_if_best();
    shorten();
    run();
    keep_if_best();
    recount();
    if (intervals_ == before) break;  // as every further round would leave them
    idle = best_us < before_us * (1 - min_gain) ? 0 : idle + 1;
  }
  intervals_ = std::move(best);
  run();
  recount();
}

}  // namespace plimsoll::remat
