#include "passes/fit/copy_windows.h"

#include <algorithm>
#include <cassert>
#include <limits>

// Rounds: each copy wants to be issued, or waited for, as far away as would spare compute the wait in the present timeline, and
// gets as much of it as there are bytes for. Copies to the device are served in their order, copies to the host against it:
// where bytes run out at one place, waiting there for the copies that started earliest costs least. Then every
// window gives back what it does not use, which others may want in the next round.

namespace plimsoll::fit {
namespace {

constexpr int most_rounds = 64;
constexpr double least_gain = 1e-6;  // of a round that counts
constexpr int patience = 4;          // rounds in a row that do not: where a wait goes shows in the next timeline

// The first op where compute is no earlier than `us`, the end at the latest.
int32_t first_from(const std::vector<double>& clock, double us) {
  auto at = std::lower_bound(clock.begin(), clock.end(), us);
  return static_cast<int32_t>(std::min(at, std::prev(clock.end())) - clock.begin());
}

// The last op where compute is no later than `us`, the first op at the earliest.
int32_t last_until(const std::vector<double>& clock, double us) {
  auto after = std::upper_bound(clock.begin(), clock.end(), us);
  return static_cast<int32_t>(std::max(after, std::next(clock.begin())) - clock.begin()) - 1;
}

}  // namespace

CopyWindows::CopyWindows(const RecomputeProblem& problem) : problem_(&problem), lives_(problem.value_bytes.size()) {
  collect_lives();
  make_tight();
  line_ = run_channels(*problem_, windows_);
  recount();
}

void CopyWindows::collect_lives() {
  for (int32_t o = 0; o < problem_->op_count(); ++o) {
    for (int32_t v : problem_->ops[static_cast<size_t>(o)].reads) life(v).last = o;
    for (int32_t v : problem_->ops[static_cast<size_t>(o)].writes) life(v) = {o, o, -1, 0};
  }
  for (size_t v = 0; v < lives_.size(); ++v)
    if (problem_->live_out[v]) lives_[v].last = problem_->op_count();
  for (int32_t o = 0; o < problem_->op_count(); ++o)
    for (const TakeOver& pair : problem_->ops[static_cast<size_t>(o)].in_place)
      if (life(pair.read).last == o) life(pair.read).taken_over += bytes(pair.written);
}

void CopyWindows::make_tight() {
  const int32_t end = problem_->op_count();
  constexpr int32_t unread = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> first_read(lives_.size(), unread);
  for (size_t v = 0; v < lives_.size(); ++v)
    if (problem_->live_out[v]) first_read[v] = end;
  for (int32_t o = end - 1; o >= 0; --o) {
    const RecomputeOp& op = problem_->ops[static_cast<size_t>(o)];
    if (op.channel != Channel::Compute) {
      int32_t done = op.channel == Channel::ToDevice ? op.repeat_until : o + 1;
      for (int32_t v : op.writes) done = std::min(done, first_read[static_cast<size_t>(v)]);
      windows_.push_back({o, o, done == unread ? o + 1 : done});
      assert(windows_.back().done > o && "a copy is through before what it reads is overwritten");
    }
    for (int32_t v : op.reads) first_read[static_cast<size_t>(v)] = o;
  }
  std::reverse(windows_.begin(), windows_.end());
}

int32_t CopyWindows::earliest_issue(const CopyWindow& window) const {
  int32_t earliest = op(window).not_before;
  for (int32_t v : op(window).reads) earliest = std::max(earliest, life(v).made + 1);
  return earliest;
}

void CopyWindows::recount() {
  for (Life& life : lives_) life.held = -1;
  std::vector<int32_t> from(lives_.size());
  for (size_t v = 0; v < lives_.size(); ++v) from[v] = std::max(lives_[v].made, 0);
  for (const CopyWindow& window : windows_) {
    if (op(window).channel == Channel::ToHost)
      for (int32_t v : op(window).reads) life(v).held = std::max(life(v).held, window.done - 1);
    else
      for (int32_t v : op(window).writes) from[static_cast<size_t>(v)] = window.issue;
  }
  std::vector<int64_t> change(problem_->ops.size() + 2, 0);
  for (size_t v = 0; v < lives_.size(); ++v) {
    int32_t until = std::max(lives_[v].last, lives_[v].held);
    if (until < from[v]) continue;
    change[static_cast<size_t>(from[v])] += problem_->value_bytes[v];
    change[static_cast<size_t>(until) + 1] -= problem_->value_bytes[v];
  }
  live_.assign(problem_->ops.size() + 1, 0);
  int64_t alive = 0;
  for (size_t o = 0; o < live_.size(); ++o) {
    alive += change[o];
    live_[o] = alive + (o < problem_->ops.size() ? problem_->ops[o].workspace_bytes : 0);
  }
  for (const Life& life : lives_)
    if (life.last > life.held) live_[static_cast<size_t>(life.last)] -= life.taken_over;
}

int64_t CopyWindows::peak_bytes() const { return *std::max_element(live_.begin(), live_.end()); }

// What is alive besides at `at` when the copy to the host runs until after it.
int64_t CopyWindows::held_bytes(const CopyWindow& window, int32_t at) const {
  int64_t sum = 0;
  for (int32_t v : op(window).reads) {
    if (at <= life(v).held) continue;
    if (at > life(v).last) sum += bytes(v);
    if (at == life(v).last) sum += life(v).taken_over;
  }
  return sum;
}

// When each copy to the device starts at the latest for all to be there at `needed_us`, the clock of its `done`; others: 0.
std::vector<double> CopyWindows::latest_starts(const std::vector<double>& needed_us) const {
  std::vector<double> latest(windows_.size(), 0);
  double next = std::numeric_limits<double>::infinity();
  for (size_t w = windows_.size(); w-- > 0;) {
    if (op(windows_[w]).channel != Channel::ToDevice) continue;
    next = std::min(next, needed_us[static_cast<size_t>(windows_[w].done)]) - op(windows_[w]).cost_us;
    latest[w] = next;
  }
  return latest;
}

void CopyWindows::widen_to_device(int64_t limit) {
  std::vector<double> wanted_us = latest_starts(line_.arrive_us);
  int32_t previous = 0;
  for (size_t w = 0; w < windows_.size(); ++w) {
    CopyWindow& window = windows_[w];
    if (op(window).channel != Channel::ToDevice) continue;
    int32_t wanted = std::max({previous, earliest_issue(window), last_until(line_.leave_us, wanted_us[w])});
    int64_t needs = 0;
    for (int32_t v : op(window).writes) needs += bytes(v);
    for (; window.issue > wanted && live_[static_cast<size_t>(window.issue) - 1] + needs <= limit; --window.issue)
      live_[static_cast<size_t>(window.issue) - 1] += needs;
    previous = window.issue;
  }
}

void CopyWindows::widen_to_host(int64_t limit) {
  for (size_t w = windows_.size(); w-- > 0;) {
    CopyWindow& window = windows_[w];
    if (op(window).channel != Channel::ToHost) continue;
    // Without the wait, compute is everywhere that much earlier.
    const size_t done = static_cast<size_t>(window.done);
    int32_t wanted = first_from(line_.arrive_us, line_.finish_us[w] + line_.leave_us[done] - line_.arrive_us[done]);
    for (; window.done < wanted; ++window.done) {
      int64_t& live = live_[static_cast<size_t>(window.done)];
      int64_t more = held_bytes(window, window.done);
      if (live + more > limit) break;
      live += more;
      for (int32_t v : op(window).reads) life(v).held = std::max(life(v).held, window.done);
    }
  }
}

// Takes from each window what nothing in the timeline changes without.
void CopyWindows::shorten() {
  std::vector<double> latest_us = latest_starts(line_.leave_us);
  for (size_t w = 0; w < windows_.size(); ++w) {
    CopyWindow& window = windows_[w];
    if (op(window).channel == Channel::ToDevice)
      window.issue = std::clamp(last_until(line_.leave_us, latest_us[w]), window.issue, window.op);
    else
      window.done = std::clamp(first_from(line_.arrive_us, line_.finish_us[w]), window.op + 1, window.done);
  }
}

void CopyWindows::widen(int64_t limit, FirstServed first) {
  for (int round = 0, idle = 0; round < most_rounds && idle < patience; ++round) {
    double before = line_.total_us;
    if (first == FirstServed::ToHost) widen_to_host(limit);
    widen_to_device(limit);
    if (first == FirstServed::ToDevice) widen_to_host(limit);
    line_ = run_channels(*problem_, windows_);
    shorten();
    line_ = run_channels(*problem_, windows_);
    recount();
    idle = line_.total_us < before * (1 - least_gain) ? 0 : idle + 1;
  }
}

}  // namespace plimsoll::fit
