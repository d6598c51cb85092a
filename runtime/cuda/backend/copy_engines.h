#pragma once

// Copies between the card and pinned host memory, on a stream for each direction, and collectives on one more, beside
// what computes.

#include "runtime/copy_order.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/step.h"

namespace plimsoll {

class CopyEngines {
 public:
  Status create() {
    if (Status s = to_host_.create()) return s;
    if (Status s = to_device_.create()) return s;
    // A collective that waits for multiprocessors keeps the other ranks waiting.
    return ranks_.create(CudaStream::Priority::High);
  }
  cudaStream_t stream(Engine engine) const {
    return engine == Engine::ToHost ? to_host_ : engine == Engine::ToDevice ? to_device_ : ranks_;
  }

 private:
  CudaStream to_host_, to_device_, ranks_;
};

// The copies of one function, in its order. All calls may stand in a capture of `compute`.
class FunctionCopies {
 public:
  // Makes the events; nothing is made later. Not null: `place` is pinned host memory in which collectives that run
  // beside computing say that they begin, by their instruction and `first_place`.
  Status create(const PlanFunction& function, int32_t* place = nullptr, int32_t first_place = 0);

  // Whether computing waits for a copy right before the instruction.
  bool is_wait_at(size_t instruction) const { return !order_.due[instruction].empty(); }
  // Starts the copy, or the collectives that one launch does, once what is on `compute` now is done. Copies are started
  // in their order; `instruction` is the first. They are launched by launch_started(), or by the first wait() for one.
  Status start(llvm::ArrayRef<Step> steps, size_t instruction, cudaStream_t compute);
  // To be called behind each launch on `compute`, and behind collectives. A captured graph holds some 100 KiB of the
  // card for each chain of nodes that the driver sees in it, and it follows a node to the first that was captured
  // behind it. So that this is the next one of the same stream, copies are captured behind the next one that computes,
  // and each has an empty node behind it before anything waits for it.
  Status launch_started(const CopyEngines& engines);
  // Lets `compute` wait for the copies that are due before the instruction; the number of instructions stands for the
  // end.
  Status wait(size_t instruction, const CopyEngines& engines, cudaStream_t compute);

 private:
  struct Copy {
    CudaEvent ready, done;
  };
  struct Started {
    llvm::ArrayRef<Step> steps;
    size_t instruction;
  };
  CopyOrder order_;
  std::vector<std::optional<Copy>> copies_;  // by instruction
  std::vector<bool> marked_;                 // by instruction
  std::vector<Started> started_;             // and not launched, in order
  int32_t *place_ = nullptr, first_place_ = 0;
};

}  // namespace plimsoll
