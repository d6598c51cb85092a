#pragma once

// Some of a job's ranks as ranks of their own: those that differ along one axis of its mesh.

#include "runtime/comm/communicator.h"

#include <vector>

namespace plimsoll {

// The own end of the group of `members`, ranks of `all`, to which this one belongs: rank i of the group is members[i].
// `all` must outlive it. Different groups communicate at the same time.
std::unique_ptr<Communicator> make_group(Communicator& all, std::vector<int64_t> members);

}  // namespace plimsoll
