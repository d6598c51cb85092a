#pragma once

// The waits that keep a function's copies between memories in their places beside computing. Copies of one direction
// follow each other, so one wait often stands for several, and neighbouring collectives of a kind are one launch, which
// is waited for once; on a GPU each wait costs both sides some microseconds, and keeps updates on either side of it
// apart.

#include "ir/plan/plan.h"

namespace plimsoll {

struct CopyOrder {
  // The copies that computing waits for right before each instruction, and before the end: at most the last one of each
  // direction.
  std::vector<llvm::SmallVector<size_t, 2>> due;
  // For each instruction: is it a copy that waits for all computing before it? Others follow a copy of their direction
  // that did.
  std::vector<bool> waits;
};

CopyOrder order_copies(const PlanFunction& function);

}  // namespace plimsoll
