#pragma once

// What a plan adds up over ranks. check_ranks proves that ranks stay alike; they may do so and still compute something
// else, where a sum is left out and a later one makes their values alike again.

#include "ir/plan/plan.h"

namespace plimsoll {

// Follows along the data and the tensor axis which slots are whole, which are the rank's part of a whole, and which are
// its summand: the ranks' values add up to what the plan means. A summand must come to a sum before anything but linear
// ops reads it, must not meet a whole in an addition or another rank's part in a product, and is added up once; a whole
// is not added up. What does not follow from records is not known, and then nothing is claimed.
Status check_sums(const Plan& plan);

}  // namespace plimsoll
