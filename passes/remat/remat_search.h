#pragma once

// The two searches over sequences with repeats and fetches: greedy descent of the peak, and annealing from what it found.

#include "passes/remat/remat_schedule.h"

namespace plimsoll::fit {

// What is looked at for each change of a descent: everything, or what may be best by how it did before.
enum class Tried : uint8_t { All, Promising };

// Inserts repeats and fetches, best first by excess removed for the time they add, until the peak is within the limit. False when
// nothing lowers the excess any more.
bool lower_peak(Sequence& sequence, int64_t limit, Tried tried);

// Takes out repeats and fetches the limit does not need, dearest first.
void drop_unneeded(Sequence& sequence, int64_t limit);

struct AnnealOptions {
  int64_t steps = 0;   // of the sequence's memory profile
  uint64_t seed = 1;
  double heat = 1;     // how much dearer a change may be at first, in mean costs of a repeat or fetch
  double enough_us = 0;  // stop at this added time: none is less
};

// Random changes; leaves the cheapest sequence found within the limit, or while there is none that with the least excess.
void anneal(Sequence& sequence, int64_t limit, const AnnealOptions& options);

// Where the maker `id` would end the wait of one of its values that is alive at `peak` but not touched there: a repeat right before
// the next use, a fetch there or as early as hides it. Empty where nothing can.
llvm::SmallVector<Moment, 2> ends_of_wait(const Sequence& sequence, int32_t id, Moment peak);

// Makes `sequence` have exactly these repeats and fetches.
void set_extras(Sequence& sequence, llvm::ArrayRef<Moment> extras);

// What is in the sequence, measured afresh.
RecomputePlan plan_of(const Sequence& sequence);

}  // namespace plimsoll::fit
