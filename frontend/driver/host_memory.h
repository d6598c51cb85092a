#pragma once

// What the ranks of a run take of their hosts' memory: more than a host's budget, or than it has, ends a run before its
// first step and not in the middle of the night.

#include "frontend/driver/job_ranks.h"

namespace plimsoll {

struct RankMemory {
  int64_t arena_bytes = 0;   // arenas in host memory, those of a CPU among them
  int64_t pinned_bytes = 0;  // of them, what the plan's host budget counts
  int64_t loading_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t snapshot_bytes = 0;
  int64_t decoding_bytes = 0;  // pinned, for JPEGs that a GPU decodes
};
// Of the rank's own stage.
RankMemory memory_of_rank(const Plan& own, int64_t cache_bytes, int64_t snapshot_bytes);

// All ranks of the job call it before any of them takes memory. Those of each host are counted together: an error where
// they are above the plan's budget for a host, or above what this host has free.
Status check_host_memory(const HostSummary& planned, const RankMemory& takes, JobRanks& ranks);

}  // namespace plimsoll
