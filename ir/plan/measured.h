#pragma once

// Measured times of a plan's instructions, as `run --profile` leaves them in a timing cache.

#include "ir/machine/timing_cache.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Microseconds; none where the cache does not know the call on the plan's device.
std::optional<double> measured_us(const Plan& plan, const Instruction& instruction, const TimingCache& times);

// Puts measured times in the place of predicted ones, in all stages. Gives the number of instructions that have one.
int64_t use_measured_times(Plan& plan, const TimingCache& times);

}  // namespace plimsoll
