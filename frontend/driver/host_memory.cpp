#include "frontend/driver/host_memory.h"

#include "frontend/api/machine.h"
#include "ir/support/units.h"
#include "runtime/comm/host_name.h"

#include <algorithm>
#include <vector>

namespace plimsoll {
namespace {

// What the ranks tell each other.
struct OnHost {
  HostName host{};
  RankMemory takes;
  int64_t free_bytes = 0;
};

// The ranks of one host.
struct HostMemory {
  int64_t ranks = 0, free_bytes = 0;
  RankMemory takes;

  int64_t counted_bytes() const {
    return takes.pinned_bytes + takes.loading_bytes + takes.cache_bytes + takes.decoding_bytes;
  }
  std::string who() const { return ranks == 1 ? "the run takes " : "the " + format_count(ranks) + " ranks here take "; }
  std::string list(int64_t arena_bytes) const {
    std::string text;
    for (const auto& [what, bytes] :
         {std::pair("arenas", arena_bytes), std::pair("batches read ahead", takes.loading_bytes),
          std::pair("cache", takes.cache_bytes), std::pair("JPEG decoding", takes.decoding_bytes),
          std::pair("snapshot for checkpoints", takes.snapshot_bytes)})
      if (bytes > 0) text += (text.empty() ? "" : ", ") + std::string(what) + " " + format_bytes(bytes);
    return text;
  }
};

Result<HostMemory> memory_of_host(const RankMemory& takes, JobRanks& ranks) {
  // Read before any rank goes on and takes what it needs.
  const OnHost own{host_name(), takes, available_memory_here()};
  std::vector<OnHost> all{own};
  if (ranks.are_several()) {
    all.resize(static_cast<size_t>(ranks.count()));
    if (Status s = ranks.communicator()->gather_all(&own, all.data(), sizeof own)) return s;
  }
  HostMemory host;
  host.free_bytes = own.free_bytes;
  for (const OnHost& each : all) {
    if (each.host != own.host) continue;
    ++host.ranks;
    host.takes.arena_bytes += each.takes.arena_bytes;
    host.takes.pinned_bytes += each.takes.pinned_bytes;
    host.takes.loading_bytes += each.takes.loading_bytes;
    host.takes.cache_bytes += each.takes.cache_bytes;
    host.takes.snapshot_bytes += each.takes.snapshot_bytes;
    host.takes.decoding_bytes += each.takes.decoding_bytes;
  }
  return host;
}

// Of the memory that --host-budget gives, the cache and checkpoints take what the plan leaves.
Status check_budget(const HostMemory& host, const HostSummary& planned) {
  const int64_t budget = planned.budget_bytes, counted = host.counted_bytes(), snapshot = host.takes.snapshot_bytes;
  if (budget == 0 || counted + snapshot <= budget) return Status::success();
  const std::string limit = "its host budget of " + format_bytes(budget);
  if (host.ranks > 1) {
    const bool crowded = planned.ranks_per_host > 0 && host.ranks > planned.ranks_per_host;
    return budget_error(host.who() + format_bytes(counted + snapshot) + " of host memory (" +
                        host.list(host.takes.pinned_bytes) + "), which is more than the plan's budget of " +
                        format_bytes(budget) + " for a host" +
                        (crowded ? "; it counts on " + format_count(planned.ranks_per_host) +
                                       (planned.ranks_per_host == 1 ? " rank" : " ranks") + " for each host"
                                 : ""));
  }
  if (counted > budget && host.takes.decoding_bytes > 0)
    return budget_error("--decode gpu: pins " + format_bytes(host.takes.decoding_bytes) + ", and with the " +
                        format_bytes(counted - host.takes.decoding_bytes) +
                        " that the plan pins, reads ahead and caches that is more than " + limit);
  if (counted > budget)
    return budget_error("--cache: " + format_bytes(host.takes.cache_bytes) + " and the " +
                        format_bytes(counted - host.takes.cache_bytes) +
                        " that the plan pins and reads ahead are more than " + limit);
  return budget_error("--checkpoint: a snapshot takes " + format_bytes(snapshot) + " of host memory, and with the " +
                      format_bytes(counted) + " that the plan pins, reads ahead and caches that is more than " + limit +
                      "; a plan made with --host-budget " + format_bytes(counted + snapshot) +
                      " or with --for-checkpoints has room for both");
}

Status check_free(const HostMemory& host) {
  const int64_t bytes = host.takes.arena_bytes + host.takes.loading_bytes + host.takes.cache_bytes +
                        host.takes.decoding_bytes + host.takes.snapshot_bytes;
  if (bytes <= host.free_bytes) return Status::success();
  return system_error(host.who() + format_bytes(bytes) + " of host memory (" + host.list(host.takes.arena_bytes) +
                      "), " + format_bytes(host.free_bytes) + " are available");
}

}  // namespace

RankMemory memory_of_rank(const Plan& own, int64_t cache_bytes, int64_t snapshot_bytes) {
  RankMemory takes;
  for (const Arena& arena : own.arenas) {
    const bool is_pinned = arena.space == MemorySpace::Host;
    if (is_pinned || own.device.backend == "cpu") takes.arena_bytes += arena.bytes;
    if (is_pinned) takes.pinned_bytes += arena.bytes;
  }
  takes.loading_bytes = own.loading_bytes();
  takes.cache_bytes = cache_bytes;
  takes.snapshot_bytes = snapshot_bytes;
  return takes;
}

Status check_host_memory(const HostSummary& planned, const RankMemory& takes, JobRanks& ranks) {
  Result<HostMemory> host = memory_of_host(takes, ranks);
  if (!host) return host.takeError();
  Status fits = check_budget(*host, planned);
  return ranks.agreed(fits ? std::move(fits) : check_free(*host));
}

}  // namespace plimsoll
