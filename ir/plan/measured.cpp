#include "ir/plan/measured.h"

#include "ir/op_def.h"

namespace plimsoll {

std::optional<double> measured_us(const Plan& plan, const Instruction& instruction, const TimingCache& times) {
  const OpDef* op = find_op(instruction.op);
  if (!op) return std::nullopt;
  llvm::SmallVector<const Type*, 6> types;
  for (SlotId operand : instruction.operands)
    types.push_back(operand < 0 ? nullptr : &plan.slots[static_cast<size_t>(operand)].type);
  return times.find(plan.device.name, instruction.op, instruction.kernel, OpCall(*op, instruction.attrs, types));
}

int64_t use_measured_times(Plan& plan, const TimingCache& times) {
  int64_t found = 0;
  for (PlanFunction& function : plan.functions)
    for (Instruction& instruction : function.instructions)
      if (const std::optional<double> us = measured_us(plan, instruction, times)) {
        instruction.predicted_us = *us;
        ++found;
      }
  for (Plan& stage : plan.later_stages) found += use_measured_times(stage, times);
  return found;
}

}  // namespace plimsoll
