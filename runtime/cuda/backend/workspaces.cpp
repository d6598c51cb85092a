#include "runtime/cuda/backend/workspaces.h"

#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/step.h"

namespace plimsoll {
Status cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes) {
  CudaLibraries libraries;
  libraries.plan_for({nullptr, description.str(), plan.device.compute_capability});
  for (const Instruction& instruction : plan.functions.front().instructions) {
    // Views hold types alone, because prepare functions read no data.
    auto type_of = [&](SlotId id) { return TensorView{plan.slots[static_cast<size_t>(id)].type}; };
    Result<PlannedStep> planned = plan_step(plan, instruction, type_of);
    if (!planned) return planned.takeError();
    Step step{std::move(*planned)};
    if (Status s = find_launcher(instruction.kernel, step)) return s;
    const OpCall call = step.op_call();
    if (!step.launcher->prepare)
      return model_error(instruction.op + "/" + instruction.kernel + " is no kernel of cuDNN");
    Result<std::unique_ptr<CudaPrepared>> prepared = step.launcher->prepare(libraries, step.call_on(nullptr, call));
    if (!prepared) return prepared.takeError();
    bytes.push_back((*prepared)->workspace_bytes());
  }
  return Status::success();
}

}  // namespace plimsoll
