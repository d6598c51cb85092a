#include "ir/plan/update_orders.h"

namespace plimsoll {

UpdateOrders update_orders_of(const Plan& plan, llvm::StringRef parameter) {
  UpdateOrders orders;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions) {
      const bool updates = instruction.op == "adamw" || instruction.op == "sgd";
      if (!updates || plan.slots[static_cast<size_t>(instruction.operands[0])].name != parameter) continue;
      orders.grad_channels_last |= instruction.attrs.get_int("grad_channels_last") != 0;
      orders.copy_channels_last |= instruction.attrs.get_int("copy_channels_last") != 0;
    }
  return orders;
}

}  // namespace plimsoll
