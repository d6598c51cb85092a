#pragma once

// cuDNN's plans, each made once for all calls that ask for the same. A kernel that cuDNN generates is a module of its
// own on the card for every plan, some 180 KB outside our arenas, and takes milliseconds to build.

#include "runtime/cuda/backend/cudnn_plan.h"

#include <map>
#include <vector>

namespace plimsoll {

class CudnnPlans {
 public:
  using Plan = Result<std::shared_ptr<CudnnPlan>>;

  // As plan_attention, plan_attention_grad and plan_convolution.
  Plan attention(const CudnnCard& card, const CudnnAttention& attention);
  Plan attention_grad(const CudnnCard& card, const CudnnAttention& attention);
  Plan convolution(const CudnnCard& card, const CudnnConvolution& convolution, int64_t max_workspace_bytes, int rank);

 private:
  using Key = std::vector<int64_t>;

  Plan find(Key key, llvm::function_ref<Result<std::unique_ptr<CudnnPlan>>()> make);

  std::map<Key, std::shared_ptr<CudnnPlan>> plans_;
};

}  // namespace plimsoll
