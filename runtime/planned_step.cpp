#include "runtime/planned_step.h"

namespace plimsoll {

Result<PlannedStep> plan_step(const Plan& plan, const Instruction& instruction,
                              llvm::function_ref<TensorView(SlotId)> view) {
  PlannedStep step;
  step.op = find_op(instruction.op);
  if (!step.op) return model_error("the plan needs the op '" + instruction.op + "', which this program does not know");
  step.attrs = &instruction.attrs;
  for (SlotId operand : instruction.operands) {
    step.operands.push_back(operand < 0 ? TensorView() : view(operand));
    step.operand_types.push_back(operand < 0 ? nullptr : &plan.slots[static_cast<size_t>(operand)].type);
  }
  for (SlotId result : instruction.results) step.results.push_back(view(result));
  if (instruction.workspace < 0) return step;
  step.workspace = view(instruction.workspace).data;
  step.workspace_bytes = plan.slots[static_cast<size_t>(instruction.workspace)].bytes;
  return step;
}

}  // namespace plimsoll
