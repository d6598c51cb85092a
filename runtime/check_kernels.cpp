#include "runtime/check_kernels.h"

#include "runtime/planned_step.h"

namespace plimsoll {

Status check_kernels(const Plan& plan, WorkspaceNeed need) {
  // Views hold types alone, because workspaces follow from shapes.
  const auto type_of = [&](SlotId id) { return TensorView{plan.slots[static_cast<size_t>(id)].type}; };
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions) {
      Result<PlannedStep> step = plan_step(plan, instruction, type_of);
      if (!step) return step.takeError();
      const OpCall call = step->op_call();
      const std::optional<int64_t> needed = need(call, step->kernel_call(call).result_types(), instruction.kernel);
      if (needed && *needed <= step->workspace_bytes) continue;
      const std::string kernel = plan.slots[static_cast<size_t>(instruction.results[0])].name + ": kernel '" +
                                 instruction.kernel + "' of " + instruction.op;
      if (!needed)
        return model_error(kernel + " is in the plan, and this program has none for such a call; compile it again");
      return model_error(kernel + " takes " + llvm::Twine(*needed) + " bytes of workspace, the plan gives it " +
                         llvm::Twine(step->workspace_bytes) + "; compile it again");
    }
  return Status::success();
}

}  // namespace plimsoll
