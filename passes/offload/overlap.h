#pragma once

// When copies to and from the host are issued and when compute waits for them: the further apart, the more they hide
// behind compute, and the longer bytes are alive.

#include "passes/remat/remat.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <vector>

namespace plimsoll {

// The copy `op` is issued right before the op `issue` runs, `issue` itself being the copy where it is issued in its
// place, and compute waits for it right before the op `done`; op_count() is after the last op. A copy to the device
// writes its bytes from `issue` on. What a copy to the host reads is alive, and not taken over in place, up to but not
// at `done`.
struct CopyInterval {
  int32_t op, issue, done;
};

struct Overlap {
  std::vector<CopyInterval> intervals;  // by op
  double total_us = 0;                  // until all engines are through
  double stalled_us = 0;                // of it, more than compute takes with what copies cost it
  int64_t peak_bytes = 0;
  int64_t limit_bytes = 0;  // what the intervals were kept to
};

// Windows for the copies of a sequence that has its remats and copies in place, as ops. A copy to the host is issued in
// its place; one to the device is waited for by the first op that reads what it writes, or by the op that overwrites
// what it reads (`remat_until`), and is issued once what it reads from was waited for. First intervals that keep to the
// peak of those as short as can be; then, each for a higher limit than the one before, intervals that take less time,
// up to `highest_bytes`. The limits depend on the sequence alone.
std::vector<Overlap> overlap_levels(const RematProblem& problem, int64_t highest_bytes);

// No intervals take less time than this, nor do those of the sequence with more remats and copies in it.
double min_total_us(const RematProblem& problem);

}  // namespace plimsoll
