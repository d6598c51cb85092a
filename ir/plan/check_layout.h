#pragma once

// The half of the checker that needs no run: slots lie where their kind may lie, and the plan's sums are
// true.

#include "ir/plan/plan.h"

namespace plimsoll {

// For a plan that passed validate_plan.
Status check_layout(const Plan& plan);

// The peaks the plan claims, for a plan whose lifetimes and in-place claims are known to be true.
Status check_peaks(const Plan& plan);

std::string describe_slot(const Plan& plan, SlotId id);  // "%h.3 [1024, 2048)"
bool share_bytes(const Slot& a, const Slot& b);
bool same_bytes(const Slot& a, const Slot& b);

}  // namespace plimsoll
