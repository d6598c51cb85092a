#pragma once

// Buckets of gradients' sums, which the runtime launches as one, and where each is issued among the nodes that read
// none of them.

#include "ir/graph.h"
#include "ir/machine/device.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace plimsoll {

// A sum, and the place of the node that it reads last.
struct ReadyCollective {
  size_t ready = 0;
  NodeId id;
};

struct CollectiveBucket {
  size_t ready = 0;      // the place of the last node that one of its members reads
  size_t issue = 0;      // the place of the node behind which it is issued
  double beside_us = 0;  // how long its launch takes beside computing
  std::vector<NodeId> members;
};

// A sum of gradients of this many bytes moves them at four fifths of the link's speed at least. Where a collective's
// base is short, launches are no shorter than 120 us, since computing loses some microseconds to each.
int64_t min_bucket_bytes(const DeviceDescription& device);

// Buckets of the collectives, in the order in which they are issued. `early` are the nodes that read none of them.
std::vector<CollectiveBucket> choose_buckets(const Graph& graph, std::vector<ReadyCollective> collectives,
                                             llvm::ArrayRef<NodeId> early, const DeviceDescription& device,
                                             llvm::function_ref<double(NodeId)> cost_us);

// The first bucket, the last one at least, that is not through when `early` is, and for how long the link has work
// then.
std::pair<size_t, double> buckets_behind(llvm::ArrayRef<CollectiveBucket> buckets, llvm::ArrayRef<NodeId> early,
                                         llvm::function_ref<double(NodeId)> cost_us);

}  // namespace plimsoll
