#pragma once

// Places updates that one launch can do side by side, where that costs no bytes.

#include "passes/schedule/order.h"

namespace plimsoll {

// Returns `order` with those updates gathered that end no buffer's life, and the nodes after them moved along. An
// update moves right behind the last reader of the largest buffer it reads (its gradient, say, which lives until then
// anyway), or stays before it. The peak is never above the given order's. `update_kinds` has for each node a number
// that updates of one kind share, or -1 for a node that is no update.
std::vector<int32_t> with_idle_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                                llvm::ArrayRef<int32_t> update_kinds);

}  // namespace plimsoll
