#pragma once

// Brings updates together that one launch can do, where that costs no bytes.

#include "passes/schedule/order.h"

namespace plimsoll {

// `order` with the updates that end no life gathered, and with what follows from them. Each stays before the last
// reader of the largest buffer it reads (its gradient, say, which lives until then anyway), or moves right behind it.
// The peak is never above the given order's. `update_kinds` is by node: -1 for what is no update, else a number that
// updates of one kind share.
std::vector<int32_t> with_idle_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                                llvm::ArrayRef<int32_t> update_kinds);

}  // namespace plimsoll
