#include "passes/fit/overlap.h"

#include "passes/fit/copy_windows.h"

#include <algorithm>

// Windows as wide as they help need some peak; between that and the tight windows' peak, a fixed ladder of limits is tried, as
// far up as is allowed. So a higher limit tries all that a lower one does.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double rung_ratio = 0.7;  // of the room above the tight peak
constexpr int rungs = 12;

void keep_better(CopyWindows& best, CopyWindows other) {
  if (other.total_us() < best.total_us()) best = std::move(other);
}

CopyWindows widened(CopyWindows windows, int64_t limit) {
  CopyWindows other = windows;
  windows.widen(limit, FirstServed::ToHost);
  other.widen(limit, FirstServed::ToDevice);
  keep_better(windows, std::move(other));
  return windows;
}

CopyWindows widest_within(const RecomputeProblem& problem, int64_t limit) {
  const CopyWindows tight(problem);
  CopyWindows widest = widened(tight, std::numeric_limits<int64_t>::max());
  CopyWindows best = widened(tight, tight.peak_bytes());
  double room = static_cast<double>(widest.peak_bytes() - tight.peak_bytes());
  for (int rung = 1; rung < rungs; ++rung) {
    room *= rung_ratio;
    int64_t bytes = tight.peak_bytes() + static_cast<int64_t>(room);
    if (bytes <= limit) keep_better(best, widened(tight, bytes));
  }
  if (widest.peak_bytes() <= limit) keep_better(best, std::move(widest));
  return best;
}

}  // namespace

Overlap overlap_copies(const RecomputeProblem& problem, int64_t limit_bytes) {
  CopyWindows windows = widest_within(problem, limit_bytes);
  Overlap result{windows.windows().vec(), windows.total_us(), windows.total_us(), windows.peak_bytes()};
  for (const RecomputeOp& op : problem.ops)
    if (op.channel == Channel::Compute) result.stalled_us -= op.cost_us;
  return result;
}

}  // namespace plimsoll
