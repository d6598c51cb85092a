#pragma once

// States that live in host memory between their uses, and copies issued where their intervals begin.

#include "passes/analysis/plan_draft.h"
#include "passes/offload/overlap.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

struct HostChoice {
  std::string state;
  StateRole role;
  int64_t bytes;  // of host memory
};

// States worth keeping on the host, in the order in which to move them there: optimizer state, accumulated gradients,
// parameters. Within a role the states that the step updates first come first, because their copies have most compute
// left to hide behind.
std::vector<HostChoice> states_for_host(const PlanDraft& draft);

// Moves the named states of a scheduled function to the host: each is reloaded before its first reader, and its next
// value, made on the device, is copied back right after. What update_in_pieces copies stays as it is. `writers` follow.
void move_states_to_host(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& states);

// Moves each copy to where it is issued and returns where each is waited for. `intervals` are those of a level of
// overlap_levels for the graph as it is.
std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyInterval> intervals);

}  // namespace plimsoll
