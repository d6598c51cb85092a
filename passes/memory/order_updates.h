#pragma once

// Brings updates together that one launch can do, where that costs no bytes.

#include "passes/memory/order.h"

namespace plimsoll {

// `order` with each update that ends no life moved behind the last reader of the largest buffer it reads (its gradient,
// which lives until then anyway), and with what follows from it. The peak is never above the given order's.
std::vector<int32_t> with_idle_updates_gathered(const OrderProblem& problem, llvm::ArrayRef<int32_t> order,
                                                const std::vector<bool>& is_update);

}  // namespace plimsoll
