#pragma once

// Chooses the order of a function's instructions so that the peak of live bytes is low.

#include "passes/analysis/plan_draft.h"

namespace plimsoll {

struct ScheduleReport {
  int64_t peak_before_bytes = 0;  // transient bytes in the order that derivation left
  int64_t peak_after_bytes = 0;
  // All nodes in the derived order with each update as soon as it may run. Every gradient is used up at once there, so
  // it has less alive away from the peak, which recompute builds on.
  std::vector<NodeId> early_updates;
};

// Reorders `graph`. `writers` is what make_updates_writable gave: each comes after every other reader of its state.
// Values keep their meaning, so the result is unchanged. Sizes count in multiples of `alignment`; workspaces count, by
// the kernel that will run. Errors when two updates each need the other's old value.
Result<ScheduleReport> schedule(Graph& graph, llvm::ArrayRef<NodeId> writers, const KernelCatalog& catalog,
                                int64_t alignment);

}  // namespace plimsoll
