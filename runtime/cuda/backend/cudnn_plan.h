#pragma once

// cuDNN's graphs behind plain data: the one place that includes cudnn-frontend, which is slow to compile.

#include "ir/support/status.h"
#include "ir/type.h"
#include "runtime/kernels/conv.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

struct cudnnContext;

namespace plimsoll {

// Plans are made for a card: the one behind a handle, or one that is only described and need not be here.
struct CudnnCard {
  cudnnContext* handle = nullptr;
  std::string description;     // cuDNN's own, of a card; read where there is no handle
  int compute_capability = 0;  // 90 for 9.0
};

// cuDNN's description of the first card of this machine, for plans on machines without it.
Result<std::string> describe_card_to_cudnn();

// A tensor as cuDNN sees it: sizes and strides in its own order of dimensions, whatever the layout.
struct CudnnTensor {
  DType dtype = DType::F32;
  llvm::SmallVector<int64_t, 5> sizes, strides;
};

struct CudnnAttention {
  CudnnTensor q, k, v, y;  // [batch, heads, time, depth]
  double scale = 1;
  bool causal = false;
  bool deterministic = false;  // backward only
};

struct CudnnConvolution {
  ConvPass pass = ConvPass::Forward;
  CudnnTensor x, w, y;  // [batch, channels, space...], w [out, in / groups, space...]
  llvm::SmallVector<int64_t, 3> pads_begin, pads_end, strides, dilations;
  bool tensor_cores = true;  // f32 only: may operands be rounded to TF32?
};

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;

  // Pointers in the order the maker names. Errors are cuDNN's own words.
  virtual Status run(cudnnContext* cudnn, llvm::ArrayRef<const void*> tensors, void* workspace) = 0;
  virtual int64_t workspace_bytes() const = 0;
};

// q, k, v, y, lse
Result<std::unique_ptr<CudnnPlan>> plan_attention(const CudnnCard& card, const CudnnAttention& attention);
// q, k, v, y, lse, dy, dq, dk, dv
Result<std::unique_ptr<CudnnPlan>> plan_attention_grad(const CudnnCard& card, const CudnnAttention& attention);
// x, w, y, of which one is written as the pass says. Only engines that take no more workspace and give the same bits
// again. Rank 0 is cuDNN's own choice; others differ from it and from each other in engine or tile, and are there to be
// timed. Fails where there are fewer.
Result<std::unique_ptr<CudnnPlan>> plan_convolution(const CudnnCard& card, const CudnnConvolution& convolution,
                                                    int64_t max_workspace_bytes, int rank = 0);

}  // namespace plimsoll
