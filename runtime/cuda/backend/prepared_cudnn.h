#pragma once

// A plan of cuDNN's as launchers keep it, and how it is run.

#include "runtime/cuda/backend/cudnn_plan.h"
#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

struct PreparedCudnn : CudaPrepared {
  cudnnContext* cudnn = nullptr;
  std::shared_ptr<CudnnPlan> plan;
  int64_t pieces = 1;     // equal chunks of the batch, one run each
  int64_t own_bytes = 0;  // at the start of the workspace, beside what the plan takes

  int64_t workspace_bytes() const override { return plan->workspace_bytes() + own_bytes; }
  Status run(const CudaCall& k, llvm::ArrayRef<const void*> tensors);
};

inline PreparedCudnn& prepared_cudnn(const CudaCall& k) { return static_cast<PreparedCudnn&>(*k.prepared); }

Status workspace_too_small(const CudaCall& k, int64_t asked);

}  // namespace plimsoll
