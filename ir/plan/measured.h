#pragma once

// Measured times of a plan's instructions, as `run --profile` leaves them in a timing cache.

#include "ir/machine/timing_cache.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Microseconds; none where the cache does not know the call on the plan's device.
std::optional<double> measured_us(const Plan& plan, const Instruction& instruction, const TimingCache& times);

// Puts measured times in the place of predicted ones, in all stages.
void use_measured_times(Plan& plan, const TimingCache& times);

// All instructions of a step with one op and kernel, those of accumulated micro-batches too.
struct OpTime {
  std::string name;  // "linear/onednn"
  int64_t count = 0;
  double predicted_us = 0;
  double measured_us = 0;  // 0: some of them were not measured
};
// The most predicted time first. `times` may be null.
std::vector<OpTime> sum_up_by_op(const Plan& plan, const TimingCache* times);

}  // namespace plimsoll
