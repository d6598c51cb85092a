#include "runtime/cuda/backend/copy_channels.h"

#include "ir/op_def.h"

namespace plimsoll {

Status FunctionCopies::create(const PlanFunction& function) {
  const size_t count = function.instructions.size();
  copies_.resize(count);
  waits_.resize(count + 1);
  for (size_t i = 0; i < count; ++i) {
    const Instruction& instruction = function.instructions[i];
    const OpDef* op = find_op(instruction.op);
    if (!op || op->channel == Channel::Compute) continue;
    Copy& copy = copies_[i].emplace();
    if (Status s = copy.ready.create()) return s;
    if (Status s = copy.done.create()) return s;
    waits_[instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done)].push_back(i);
  }
  return Status::success();
}

Status FunctionCopies::start(const Step& step, size_t instruction, const CopyChannels& channels, cudaStream_t compute) {
  const Copy& copy = *copies_[instruction];
  const cudaStream_t channel = channels.stream(step.op->channel);
  if (Status s = cuda_status(cudaEventRecord(copy.ready, compute), step.name)) return s;
  if (Status s = cuda_status(cudaStreamWaitEvent(channel, copy.ready, 0), step.name)) return s;
  if (Status s = launch_steps(step, channel)) return s;
  return cuda_status(cudaEventRecord(copy.done, channel), step.name);
}

Status FunctionCopies::wait(size_t instruction, cudaStream_t compute) {
  for (size_t copy : waits_[instruction])
    if (Status s = cuda_status(cudaStreamWaitEvent(compute, copies_[copy]->done, 0), "copy")) return s;
  return Status::success();
}

}  // namespace plimsoll
