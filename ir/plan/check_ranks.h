#pragma once

// What a plan for several ranks has to keep beside the rules for one (ir/plan/check.h). All ranks run the same
// instructions in the same order, so that collectives meet; what remains to prove is that they stay in step.

#include "ir/plan/plan.h"

namespace plimsoll {

// Takes the plan of the first stage, with those of the others. Proves that every collective is one of all ranks along
// its axis, that what each rank computes from its own rows reaches outputs and whole states through sums or gathers
// alone, so that ranks hold these alike after every call, and that the pieces of a divided state make the whole and are
// updated from pieces. Where ranks have unlike devices, each is of one kind, and within that kind's budget with its
// reserves.
Status check_ranks(const Plan& plan);

}  // namespace plimsoll
