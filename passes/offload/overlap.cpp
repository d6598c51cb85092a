#include "passes/offload/overlap.h"

#include "ir/support/parallel.h"
#include "passes/offload/copy_intervals.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <optional>

// The levels are fixed limits between the peak of intervals as short as can be and that of intervals as wide as helps.
// Each level starts from the intervals of the one below, which are within its limit too. No intervals are faster than
// the bound, and hardly any are faster than the widest, so the levels end where either time is reached.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double level_ratio = 0.6;  // factor of the room above the tight peak from a level to the one below
constexpr int max_levels = 8;
constexpr double rounding = 1e-9;
constexpr double max_gain_on_widest = 0.003;  // share of its time that another level may save

// The second way counts only where the first is not fast enough. That is nearly always so, 171 times of 172 in a plan
// of Qwen2 72B, so both are tried beside each other.
CopyIntervals widened(const CopyIntervals& from, int64_t limit, double enough_us) {
  CopyIntervals intervals = from, other = from;
  parallel_for(2, [&](size_t i) {
    if (i == 0)
      intervals.widen(limit, FirstServed::Done, enough_us);
    else
      other.widen(limit, FirstServed::Issue, enough_us);
  });
  if (intervals.total_us() <= enough_us) return intervals;
  return other.total_us() < intervals.total_us() ? other : intervals;
}

Overlap overlap_of(CopyIntervals intervals, int64_t limit, double compute_us) {
  intervals.wait_late();
  intervals.issue_early();
  return {intervals.intervals().vec(), intervals.total_us(), intervals.total_us() - compute_us, intervals.peak_bytes(),
          limit};
}

}  // namespace

std::vector<Overlap> overlap_levels(const RematProblem& problem, int64_t highest_bytes, double too_long_us) {
  const EngineWork work(problem);
  const double compute_us = work.total_compute_us();
  double enough_us = min_total_us(problem) * (1 + rounding);
  const CopyIntervals tight(problem);
  // Where several collectives follow each other, moving the waits one by one can end at a wait that none of them
  // passes.
  const auto widest = [&] {
    CopyIntervals intervals = widened(tight, std::numeric_limits<int64_t>::max(), enough_us);
    if (intervals.total_us() <= enough_us) return intervals;
    CopyIntervals late = intervals;
    late.wait_for_readers();
    return late.total_us() < intervals.total_us() ? late : intervals;
  };
  std::optional<CopyIntervals> at_most;
  // Intervals under a limit are hardly faster than the widest, and of a long schedule take as long to find.
  if (problem.op_count() >= long_ops && tight.total_us() * (1 - max_gain_on_widest) >= too_long_us) {
    at_most = widest();
    if (at_most->total_us() * (1 - max_gain_on_widest) >= too_long_us)
      return {overlap_of(tight, tight.peak_bytes(), compute_us)};
  }
  CopyIntervals present = widened(tight, tight.peak_bytes(), enough_us);
  std::vector<Overlap> levels{overlap_of(present, tight.peak_bytes(), compute_us)};
  auto is_enough = [&] { return levels.back().total_us <= enough_us; };
  const auto is_collective = [](const EngineWork::Copy& copy) { return copy.engine == Engine::Ranks; };
  const bool meets_ranks = llvm::any_of(work.copies, is_collective);
  if (is_enough() || (tight.peak_bytes() >= highest_bytes && !meets_ranks)) return levels;
  if (!at_most) at_most = widest();
  // Those that hold no more are the first level, whatever the highest limit is.
  if (at_most->peak_bytes() <= tight.peak_bytes() && at_most->total_us() < levels.back().total_us * (1 - rounding))
    levels.back() = overlap_of(*at_most, tight.peak_bytes(), compute_us);
  if (is_enough() || tight.peak_bytes() >= highest_bytes) return levels;
  if (at_most->total_us() * (1 - max_gain_on_widest) >= too_long_us) return levels;
  enough_us = std::max(enough_us, at_most->total_us() * (1 + rounding));
  const double room = static_cast<double>(at_most->peak_bytes() - tight.peak_bytes());
  auto add = [&](const CopyIntervals& intervals, int64_t limit) {
    const Overlap& last = levels.back();
    if (limit > last.limit_bytes && intervals.total_us() < last.total_us * (1 - rounding))
      levels.push_back(overlap_of(intervals, limit, compute_us));
  };
  for (int level = max_levels - 1; level >= 1 && !is_enough(); --level) {
    const int64_t limit = tight.peak_bytes() + static_cast<int64_t>(room * std::pow(level_ratio, level));
    if (limit > highest_bytes) return levels;
    present = widened(present, limit, enough_us);
    add(present, limit);
  }
  if (!is_enough() && at_most->peak_bytes() <= highest_bytes) add(*at_most, at_most->peak_bytes());
  return levels;
}

}  // namespace plimsoll
