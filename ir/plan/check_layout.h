#pragma once

// The part of the checker that follows no instructions: slots lie where their kind may lie, and the plan's sums are
// true.

#include "ir/plan/plan.h"

namespace plimsoll {

// Needs a plan that passed validate_plan.
Status check_layout(const Plan& plan);

// Checks the peaks that the plan claims. Its lifetimes and in-place claims must have been checked.
Status check_peaks(const Plan& plan);

std::string describe_slot(const Plan& plan, SlotId id);  // "%h.3 [1024, 2048)"
bool same_bytes(const Slot& a, const Slot& b);

}  // namespace plimsoll
