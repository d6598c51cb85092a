#pragma once

// What a run with checkpoints copies of its states, and the bytes that the copy takes at most.

#include "ir/plan/plan.h"

#include "llvm/ADT/ArrayRef.h"

namespace plimsoll {

// The others are set by every run or by every update anew: the learning rate, which its schedule gives, sums over
// micro-batches, which are zero between updates, and transposes of states that never change.
bool is_in_checkpoints(StateRole role, const StateInit& init, llvm::StringRef name);

// Of the states that all these functions have, whole, in the files' form.
int64_t snapshot_bytes(llvm::ArrayRef<const Graph*> functions);
// The same of a plan with its later stages.
int64_t snapshot_bytes(const Plan& plan);

}  // namespace plimsoll
