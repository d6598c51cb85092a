#pragma once

// States that live in host memory between their uses, and copies that run beside computing.

#include "ir/machine/device.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/offload/overlap.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

// States worth having on the host, in the order in which to move them there: optimizer state, accumulated gradients,
// parameters; within a role those that the step updates first, whose copies have most to run beside. Each with what it
// takes there.
struct HostChoice {
  std::string state;
  StateRole role;
  int64_t bytes;
};
std::vector<HostChoice> states_for_host(const Program& program, llvm::ArrayRef<std::vector<NodeId>> writers,
                                        const DeviceDescription& device);

// Moves the named states of a scheduled function to the host: each is reloaded before its first reader, and its next
// value, made on the device, is copied back right after. `writers` follow.
void move_states_to_host(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& states);

// Moves copies to where they are issued and says where each is waited for. `intervals` are what overlap_copies made of
// the graph as it is.
std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyInterval> intervals);

}  // namespace plimsoll
