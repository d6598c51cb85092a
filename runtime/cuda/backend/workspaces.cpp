#include "runtime/cuda/backend/workspaces.h"

#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/step.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// With types alone: what is prepared sees no data.
Status describe_step(const Plan& plan, const Instruction& instruction, Step& step) {
  const std::vector<const CudaLauncher*> launchers = all_cuda_launchers();
  const auto launcher = llvm::find_if(
      launchers, [&](const CudaLauncher* l) { return l->op == instruction.op && l->name == instruction.kernel; });
  if (launcher == launchers.end())
    return model_error(instruction.op + "/" + instruction.kernel + " is no kernel of cuDNN");
  auto slot = [&](SlotId id) -> const Slot& { return plan.slots[static_cast<size_t>(id)]; };
  step.op = find_op(instruction.op);
  step.attrs = &instruction.attrs;
  step.launcher = *launcher;
  for (SlotId operand : instruction.operands) {
    step.operands.push_back(operand < 0 ? TensorView() : TensorView{slot(operand).type});
    step.operand_types.push_back(operand < 0 ? nullptr : &slot(operand).type);
  }
  for (SlotId result : instruction.results) step.results.push_back({slot(result).type});
  step.workspace_bytes = instruction.workspace < 0 ? 0 : slot(instruction.workspace).bytes;
  return Status::success();
}

}  // namespace

Status cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes) {
  CudaLibraries libraries;
  libraries.plan_for({nullptr, description.str(), plan.device.compute_capability});
  for (const Instruction& instruction : plan.functions.front().instructions) {
    Step step;
    if (Status s = describe_step(plan, instruction, step)) return s;
    const OpCall call = step.op_call();
    Result<std::unique_ptr<CudaPrepared>> prepared = step.launcher->prepare(libraries, step.call_on(nullptr, call));
    if (!prepared) return prepared.takeError();
    bytes.push_back((*prepared)->workspace_bytes());
  }
  return Status::success();
}

}  // namespace plimsoll
