#pragma once

// Updates of states on the host that come to the device piece by piece, where a whole one would set the peak.

#include "passes/analysis/plan_draft.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

// The bytes up to which an update stays whole, with these states on the host: those of the largest instruction that
// cannot be cut, which every plan needs, or more where many updates are larger. Does not depend on a budget.
int64_t whole_update_bytes(const PlanDraft& draft, const llvm::StringSet<>& on_host);

// Cuts each update of states on the host whose instructions hold more than `most_bytes` into pieces of a fraction of
// them: copies of a part of each state to the device, the same ops on it, copies back into the same part. Applies where
// every element of the next values depends only on the elements of its block and on scalars, and all states that the
// instructions write live on the host. The instructions of an update that stays whole come to stand side by side. Call
// before move_states_to_host; `writers` follow.
void update_in_pieces(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& on_host,
                      const KernelCatalog& catalog, int64_t most_bytes);

}  // namespace plimsoll
