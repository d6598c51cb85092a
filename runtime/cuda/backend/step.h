#pragma once

// An instruction of a plan on its way to the card, with nothing left to look up.

#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/folded_conv.h"
#include "runtime/planned_step.h"

#include <string>

namespace plimsoll {

struct Step : PlannedStep {
  std::string name;
  const CudaLauncher* launcher = nullptr;  // null: the reference on the host
  int algorithm = 0;
  std::unique_ptr<CudaPrepared> prepared;
  std::unique_ptr<FoldedConvolution> folded;  // what the launcher is called with, in place of the plan's call

  CudaCall call_on(cudaStream_t stream, const OpCall& call) const {
    return {kernel_call(call), workspace_bytes, algorithm, prepared.get(), stream};
  }
};

// The launcher of the kernel that a plan names; an error where there is none.
Status find_launcher(const std::string& kernel, Step& step);

// Kernels see convolutions over volumes as planning has shown them to the catalog.
void fold_volumes(Step& step);

// How many steps, from the first on, one launch can do: those that its launcher takes together and that could as well
// run in any order. 1 where there are no others.
size_t count_joined(llvm::ArrayRef<Step> steps);

// Launches all of them at once, as count_joined allows.
Status launch_steps(llvm::ArrayRef<Step> steps, cudaStream_t stream);

}  // namespace plimsoll
