#pragma once

// The searches over remats and reloads: greedy descent of the peak, and from the schedule that it found, annealing and
// repair of what was taken out.

#include "passes/remat/remat_schedule.h"

namespace plimsoll::remat {

// Which candidates a descent tries for each change: all, those that may be best by their earlier scores, or of these
// only a few of each kind of op.
enum class Tried : uint8_t { All, Promising, FewAlike };

// Whether a change may make a long chain of ops again where no shorter one lowers the peak.
enum class Chains : uint8_t { Short, Long };

// Inserts remats and reloads, best first by excess removed for the time they add, until the peak is within the limit.
// False when nothing lowers the excess any more.
bool lower_peak(RematSchedule& schedule, int64_t limit, Tried tried, Chains chains = Chains::Short);

// Takes out the remats and reloads that the limit does not need, the most costly first.
void drop_unneeded(RematSchedule& schedule, int64_t limit);

// Makes random changes for so many steps of the schedule's memory profile, or until the added time is `enough_us`,
// below which no plan is known to be possible. Leaves the cheapest schedule found within the limit, or while there is
// none the one with the least excess.
void anneal(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us = 0);

// Searches with random descents, for so many steps or until the added time is `enough_us`: takes out a few remats,
// lowers the peak again, and goes on from there where that is hardly slower. For problems without copies in which
// making a value again needs many others, so that a change of one remat alone seldom leads anywhere. Leaves the
// cheapest schedule found within the limit, or the given one while there is none.
void repair(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us = 0);

// Where the op or reload `id` could make one of its values again that is alive at `peak` but not touched there, so that
// the value need not wait across the peak: right before its next use, and for a reload also as early as hides it. Empty
// where neither works.
llvm::SmallVector<ProgramPoint, 2> reload_points(const RematSchedule& schedule, int32_t id, ProgramPoint peak);

// Makes `schedule` have exactly these remats and reloads.
void set_extras(RematSchedule& schedule, llvm::ArrayRef<ProgramPoint> extras);

// The plan of what is in the schedule, measured afresh.
RematPlan plan_of(const RematSchedule& schedule);

}  // namespace plimsoll::remat
