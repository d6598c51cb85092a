#include "passes/budget/host_shares.h"

#include <algorithm>
#include <limits>

namespace plimsoll {

std::vector<int64_t> more_of_hosts(llvm::ArrayRef<HostUse> stages, int64_t ranks_per_stage, int64_t ranks_per_host) {
  constexpr int64_t no_host = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> more(stages.size(), no_host);
  const int64_t ranks = static_cast<int64_t>(stages.size()) * ranks_per_stage;
  const auto stage_of = [&](int64_t rank) { return static_cast<size_t>(rank / ranks_per_stage); };
  for (int64_t first = 0; first < ranks; first += ranks_per_host) {
    const int64_t end = std::min(first + ranks_per_host, ranks);
    int64_t left = 0, wanting = 0;
    for (int64_t rank = first; rank < end; ++rank) {
      const HostUse& use = stages[stage_of(rank)];
      wanting += use.wants_more;
      left += use.wants_more ? 0 : std::max<int64_t>(use.share_bytes - use.takes_bytes, 0);
    }
    for (int64_t rank = first; rank < end; ++rank)
      if (stages[stage_of(rank)].wants_more) more[stage_of(rank)] = std::min(more[stage_of(rank)], left / wanting);
  }
  for (int64_t& each : more)
    if (each == no_host) each = 0;
  return more;
}

}  // namespace plimsoll
