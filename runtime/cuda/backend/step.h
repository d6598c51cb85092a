#pragma once

// An instruction of a plan on its way to the card, with nothing left to look up.

#include "runtime/cuda/backend/launcher.h"

#include <string>

namespace plimsoll {

struct Step {
  const OpDef* op = nullptr;
  const Attrs* attrs = nullptr;
  std::string name;
  llvm::SmallVector<const Type*, 6> operand_types;
  llvm::SmallVector<TensorView, 6> operands, results;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  const CudaLauncher* launcher = nullptr;  // null: the reference on the host
  std::unique_ptr<CudaPrepared> prepared;

  OpCall op_call() const { return {*attrs, operand_types}; }
  CudaCall call_on(cudaStream_t stream, const OpCall& call) const {
    return {*op, call, operands, results, workspace, workspace_bytes, prepared.get(), stream};
  }
};

// How many steps, from the first on, one launch can do: those that its launcher takes together and that could as well
// run in any order. 1 where there are no others.
size_t count_joined(llvm::ArrayRef<Step> steps);

// All of them by one launch, as count_joined allows.
Status launch_steps(llvm::ArrayRef<Step> steps, cudaStream_t stream);

}  // namespace plimsoll
