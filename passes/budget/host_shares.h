#pragma once

// What each stage of a pipeline may take of its hosts' memory: an equal share, and then also what others leave.

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <vector>

namespace plimsoll {

// Of each rank of a stage.
struct HostUse {
  int64_t share_bytes = 0;  // that it may take
  int64_t takes_bytes = 0;  // that its plan takes
  bool wants_more = false;
};

// More for each rank of the stages that want it: what the others of its hosts leave of their shares, equally among the
// ranks that want it. Ranks of a stage are neighbours, and so are those of a host; a stage gets what its fullest host
// has to give.
std::vector<int64_t> more_of_hosts(llvm::ArrayRef<HostUse> stages, int64_t ranks_per_stage, int64_t ranks_per_host);

}  // namespace plimsoll
