#include "passes/offload/overlap.h"

#include "passes/offload/copy_intervals.h"

#include <algorithm>
#include <cmath>

// Windows as wide as they help need some peak; between that and the tight windows' peak stands a fixed ladder of limits. Each rung goes on
// from the windows of the one below, which are within its limit too. Nothing is faster than the bound, so the ladder ends where that is
// reached.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double rung_ratio = 0.6;  // of the room above the tight peak
constexpr int rungs = 8;
constexpr double rounding = 1e-9;

CopyWindows widened(const CopyWindows& from, int64_t limit, double enough_us) {
  CopyWindows windows = from;
  windows.widen(limit, FirstServed::ToHost, enough_us);
  if (windows.total_us() <= enough_us) return windows;
  CopyWindows other = from;
  other.widen(limit, FirstServed::ToDevice, enough_us);
  return other.total_us() < windows.total_us() ? other : windows;
}

Overlap overlap_of(const CopyWindows& windows, int64_t limit, double compute_us) {
  return {windows.windows().vec(), windows.total_us(), windows.total_us() - compute_us, windows.peak_bytes(), limit};
}

}  // namespace

std::vector<Overlap> overlap_ladder(const RecomputeProblem& problem, int64_t highest_bytes) {
  const ChannelWork work(problem);
  const double compute_us = work.total_compute_us();
  const double enough_us = least_total_us(problem) * (1 + rounding);
  const CopyWindows tight(problem);
  CopyWindows present = widened(tight, tight.peak_bytes(), enough_us);
  std::vector<Overlap> ladder{overlap_of(present, tight.peak_bytes(), compute_us)};
  auto is_enough = [&] { return ladder.back().total_us <= enough_us; };
  if (is_enough() || tight.peak_bytes() >= highest_bytes) return ladder;
  const CopyWindows widest = widened(tight, std::numeric_limits<int64_t>::max(), enough_us);
  const double room = static_cast<double>(widest.peak_bytes() - tight.peak_bytes());
  auto add = [&](const CopyWindows& windows, int64_t limit) {
    const Overlap& last = ladder.back();
    if (limit > last.limit_bytes && windows.total_us() < last.total_us * (1 - rounding)) ladder.push_back(overlap_of(windows, limit, compute_us));
  };
  for (int rung = rungs - 1; rung >= 1 && !is_enough(); --rung) {
    const int64_t limit = tight.peak_bytes() + static_cast<int64_t>(room * std::pow(rung_ratio, rung));
    if (limit > highest_bytes) return ladder;
    present = widened(present, limit, enough_us);
    add(present, limit);
  }
  if (!is_enough() && widest.peak_bytes() <= highest_bytes) add(widest, widest.peak_bytes());
  return ladder;
}

Overlap overlap_copies(const RecomputeProblem& problem, int64_t limit_bytes) { return overlap_ladder(problem, limit_bytes).back(); }

}  // namespace plimsoll
