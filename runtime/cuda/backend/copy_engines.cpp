#include "runtime/cuda/backend/copy_engines.h"

#include "ir/op_def.h"
#include "kernels/cuda/move/mark.h"

namespace plimsoll {

Status FunctionCopies::create(const PlanFunction& function, int32_t* place, int32_t first_place) {
  order_ = order_copies(function);
  copies_.resize(function.instructions.size());
  marked_.resize(function.instructions.size());
  place_ = place, first_place_ = first_place;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const OpDef* op = find_op(function.instructions[i].op);
    if (!op || op->engine == Engine::Compute) continue;
    // On the chain of what computes, a mark would cost its launch.
    marked_[i] = place && op->engine == Engine::Ranks && function.instructions[i].done >= 0;
    Copy& copy = copies_[i].emplace();
    if (Status s = copy.ready.create()) return s;
    if (Status s = copy.done.create()) return s;
  }
  return Status::success();
}

Status FunctionCopies::start(llvm::ArrayRef<Step> steps, size_t instruction, const CopyEngines& engines,
                             cudaStream_t compute) {
  const Copy& copy = *copies_[instruction];
  const Step& step = steps.front();
  const cudaStream_t copies = engines.stream(step.op->engine);
  if (order_.waits[instruction]) {
    if (Status s = cuda_status(cudaEventRecord(copy.ready, compute), step.name)) return s;
    if (Status s = cuda_status(cudaStreamWaitEvent(copies, copy.ready, 0), step.name)) return s;
  }
  if (marked_[instruction])
    if (Status s =
            cuda_status(cuda::mark_place(place_, first_place_ + static_cast<int32_t>(instruction), copies), step.name))
      return s;
  if (Status s = launch_steps(steps, copies)) return s;
  for (size_t i = 0; i < steps.size(); ++i)
    if (Status s = cuda_status(cudaEventRecord(copies_[instruction + i]->done, copies), step.name)) return s;
  return Status::success();
}

Status FunctionCopies::wait(size_t instruction, cudaStream_t compute) {
  for (size_t copy : order_.due[instruction])
    if (Status s = cuda_status(cudaStreamWaitEvent(compute, copies_[copy]->done, 0), "copy")) return s;
  return Status::success();
}

}  // namespace plimsoll
