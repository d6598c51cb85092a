#include "runtime/cuda/backend/copy_engines.h"

#include "ir/op_def.h"
#include "kernels/cuda/move/mark.h"

#include "llvm/ADT/STLExtras.h"

#include <utility>

namespace plimsoll {
namespace {

// In a capture, an empty node behind what `stream` has, so that the first node behind that is of the same stream, and
// not one that waits for it.
Status capture_empty_node(cudaStream_t stream) {
  auto check = [](cudaError_t error) { return cuda_status(error, "capture"); };
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  constexpr auto capture_info = cudaStreamGetCaptureInfo;
  constexpr auto update_dependencies = cudaStreamUpdateCaptureDependencies;
#else
  constexpr auto capture_info = cudaStreamGetCaptureInfo_v3;
  constexpr auto update_dependencies = cudaStreamUpdateCaptureDependencies_v2;
#endif
  if (Status s = check(capture_info(stream, &capturing, nullptr, &graph, &before, &edges, &count))) return s;
  if (capturing != cudaStreamCaptureStatusActive) return Status::success();
  cudaGraphNode_t node = nullptr;
  if (Status s = check(cudaGraphAddEmptyNode(&node, graph, before, count))) return s;
  return check(update_dependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
}

}  // namespace

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

Status FunctionCopies::start(llvm::ArrayRef<Step> steps, size_t instruction, cudaStream_t compute) {
  if (order_.waits[instruction])
    if (Status s = cuda_status(cudaEventRecord(copies_[instruction]->ready, compute), steps.front().name)) return s;
  started_.push_back({steps, instruction});
  return Status::success();
}

Status FunctionCopies::launch_started(const CopyEngines& engines) {
  for (const Started& started : std::exchange(started_, {})) {
    const Step& step = started.steps.front();
    const size_t first = started.instruction;
    const cudaStream_t copies = engines.stream(step.op->engine);
    if (order_.waits[first])
      if (Status s = cuda_status(cudaStreamWaitEvent(copies, copies_[first]->ready, 0), step.name)) return s;
    if (marked_[first])
      if (Status s =
              cuda_status(cuda::mark_place(place_, first_place_ + static_cast<int32_t>(first), copies), step.name))
        return s;
    if (Status s = launch_steps(started.steps, copies)) return s;
    for (size_t i = 0; i < started.steps.size(); ++i)
      if (Status s = cuda_status(cudaEventRecord(copies_[first + i]->done, copies), step.name)) return s;
    if (step.op->engine != Engine::Ranks)
      if (Status s = capture_empty_node(copies)) return s;
  }
  return Status::success();
}

Status FunctionCopies::wait(size_t instruction, const CopyEngines& engines, cudaStream_t compute) {
  auto is_started = [&](size_t copy) { return !started_.empty() && copy >= started_.front().instruction; };
  if (llvm::any_of(order_.due[instruction], is_started)) {
    if (Status s = capture_empty_node(compute)) return s;
    if (Status s = launch_started(engines)) return s;
  }
  for (size_t copy : order_.due[instruction])
    if (Status s = cuda_status(cudaStreamWaitEvent(compute, copies_[copy]->done, 0), "copy")) return s;
  return Status::success();
}

}  // namespace plimsoll
