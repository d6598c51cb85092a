#pragma once

// Updates of states on the host that come to the device piece by piece, where a whole one would set the peak.

#include "passes/analysis/plan_draft.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

// How updates are cut: those whose instructions hold more than `whole_bytes`, into pieces that hold about
// `piece_bytes`.
struct UpdateCut {
  int64_t whole_bytes = 0, piece_bytes = 0;
};

// The cut with the smallest pieces, whatever stays whole.
UpdateCut fine_cut(int64_t whole_bytes);

// The cut with these states on the host. What an update may hold as a whole is what the largest instruction holds that
// cannot be cut, which every plan needs, or more where otherwise too many pieces were to be searched. Does not depend
// on a budget.
UpdateCut choose_update_cut(const PlanDraft& draft, const llvm::StringSet<>& on_host);

// Cuts updates of states on the host: copies of a part of each state to the device, the same ops on it, copies back
// into the same part. Applies where every element of the next values depends only on the elements of its block and on
// scalars, and all states that the instructions write live on the host. The instructions of an update that stays whole
// come to stand side by side. Call before move_states_to_host; `writers` follow.
void update_in_pieces(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& on_host,
                      const KernelCatalog& catalog, const UpdateCut& cut);

}  // namespace plimsoll
