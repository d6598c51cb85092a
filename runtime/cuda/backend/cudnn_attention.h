#pragma once

#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention(CudaLibraries& libraries, const CudaCall& k);
Status launch_cudnn_attention(const CudaCall& k);

// Ordered: the same bits every time.
Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention_grad(CudaLibraries& libraries, const CudaCall& k);
Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention_grad_ordered(CudaLibraries& libraries, const CudaCall& k);
Status launch_cudnn_attention_grad(const CudaCall& k);

}  // namespace plimsoll
