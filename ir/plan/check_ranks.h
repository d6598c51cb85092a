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

// By stage and slot, what that finds out: how the slot's bytes relate on the ranks that differ along each axis. Empty
// where all hold the same, else "own along data", made of the rank's own rows, "part along tensor", its part or its
// summand of something that the ranks together hold, or several of these.
std::vector<std::vector<std::string>> placements_of(const Plan& plan);

}  // namespace plimsoll
