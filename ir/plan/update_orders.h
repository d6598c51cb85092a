#pragma once

#include "ir/plan/plan.h"

namespace plimsoll {

// How updates of a parameter have its gradient and its kept copy: with channels last, or in the parameter's order.
struct UpdateOrders {
  bool grad_channels_last = false, copy_channels_last = false;
};
UpdateOrders update_orders_of(const Plan& plan, llvm::StringRef parameter);

}  // namespace plimsoll
