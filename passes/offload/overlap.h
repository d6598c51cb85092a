#pragma once

// When copies to and from the host are issued and when compute waits for them: the further apart, the more they hide
// behind compute, and the longer bytes are alive.

#include "passes/remat/remat.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll {

// Ranks may be out of step by one of so many shares of a function's time.
inline constexpr double shares_out_of_step = 64;

// The copy `op` is issued right before the op `issue` runs, or in its own place where `issue` is the copy itself.
// Compute waits for it right before the op `done`; op_count() is after the last op. A copy to the device writes its
// bytes from `issue` on. What a copy to the host reads is alive, and not reused in place, up to but not at `done`. At
// each op compute waits first, then copies are issued, those of earlier ops first, then the op runs.
struct CopyInterval {
  int32_t op, issue, done;
  friend bool operator==(const CopyInterval&, const CopyInterval&) = default;
};

struct Overlap {
  std::vector<CopyInterval> intervals;  // by op
  double total_us = 0;                  // until all engines are through
  double stalled_us = 0;                // the part of it beyond compute and the interference of copies
  int64_t peak_bytes = 0;
  int64_t limit_bytes = 0;  // the intervals were kept to this
};

// Intervals for the copies of a schedule that has its remats and copies in place, as ops. A copy to the host is issued
// in its own place. A copy to the device is waited for by the first op that reads what it writes, or by the op that
// overwrites what it reads (`remat_until`), and is issued once the copy that it reads from was waited for. The first
// level keeps to the peak of intervals as short as can be; each further one takes less time under a higher limit, up to
// `highest_bytes`. The limits depend on the schedule alone. Where no level is likely to take less than
// `too_long_us`, the first one is the only one, and of a long schedule its intervals are as short as can be.
std::vector<Overlap> overlap_levels(const RematProblem& problem, int64_t highest_bytes,
                                    double too_long_us = std::numeric_limits<double>::infinity());

// No intervals take less time than this, even if more remats and copies are added to the schedule.
double min_total_us(const RematProblem& problem);

// No intervals within the limit take less time than this, or none as short as can be where these are above the limit.
double min_total_us_within(const RematProblem& problem, int64_t limit_bytes);

}  // namespace plimsoll
