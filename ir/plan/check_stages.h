#pragma once

// What the plans of a pipeline's stages have to keep beside the rules for each of them (ir/plan/check.h).

#include "ir/plan/plan.h"

namespace plimsoll {

// Proves that the stages of the mesh are there, each once; that all that they send is received, in one order on both
// sides and with the same dtype and shape; that all add up the same things in the same order; that no stage waits for
// ever, even if whoever sends waits until its peer receives; and that a state which several stages have gets the same
// next value on each. `plan` is the first stage's.
Status check_stages(const Plan& plan);

}  // namespace plimsoll
