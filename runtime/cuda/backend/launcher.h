#pragma once

// One row a CUDA kernel: how a candidate of runtime/cuda/candidates.h is prepared and launched. Rows map an op's
// operands to the plain functions of kernels/cuda; they check nothing that inference has checked.

#include "ir/op_def.h"
#include "kernels/cuda/common/scalar.h"

#include <cuda_runtime_api.h>

#include <memory>

namespace plimsoll {

class CudaLibraries;  // handles of cuBLASLt and cuDNN, runtime/cuda/backend/libraries.h

// What a kernel makes once per instruction when a plan is loaded, and keeps: library plans and descriptors.
class CudaPrepared {
 public:
  virtual ~CudaPrepared() = default;
  // Of the workspace it was prepared with; 0 where the library does not say.
  virtual int64_t workspace_bytes() const { return 0; }
};

// One launch. Pointers are device memory; nothing is copied or waited for, everything goes to `stream`. Result bytes
// may overlap operand bytes only as the op's record allows. Operands, results and workspace start at 256-byte borders.
struct CudaCall {
  const OpDef& op;
  const OpCall& call;
  llvm::ArrayRef<TensorView> operands;  // an absent one has no data
  llvm::ArrayRef<TensorView> results;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;       // what the candidate asked for when the plan was made
  CudaPrepared* prepared = nullptr;  // what the launcher's prepare returned, if it has one
  cudaStream_t stream = nullptr;

  bool has(size_t i) const { return call.has(i); }
  // Operand i, or null when absent; result i.
  template <typename T = void>
  const T* in(size_t i) const {
    return has(i) ? operands[i].as<T>() : nullptr;
  }
  template <typename T = void>
  T* out(size_t i) const {
    return results[i].as<T>();
  }
  cuda::Scalar in_scalar(size_t i) const { return scalar_of(operands[i].type.dtype); }
  cuda::Scalar out_scalar(size_t i) const { return scalar_of(results[i].type.dtype); }

  static cuda::Scalar scalar_of(DType dtype) { return static_cast<cuda::Scalar>(dtype); }
};

struct CudaLauncher {
  // Sees device pointers that hold no data yet. Must leave nothing allocated on the device.
  using PrepareFn = Result<std::unique_ptr<CudaPrepared>> (*)(CudaLibraries& libraries, const CudaCall& call);
  // Errors only where the call itself is refused; what a kernel does wrong shows up at the stream's next check.
  using LaunchFn = Status (*)(const CudaCall& call);
  // May one launch do both? Asked of calls that do not depend on each other.
  using JoinsFn = bool (*)(const CudaCall& first, const CudaCall& next);
  using LaunchGroupFn = Status (*)(llvm::ArrayRef<CudaCall> calls);

  llvm::StringLiteral op;
  llvm::StringLiteral name;
  LaunchFn launch;
  PrepareFn prepare = nullptr;
  JoinsFn joins = nullptr;  // with launch_group: calls that all join the first of them
  LaunchGroupFn launch_group = nullptr;
};

// One launch_*.cpp a family, as in runtime/cuda/candidates.h.
llvm::ArrayRef<CudaLauncher> cuda_elementwise_launchers();
llvm::ArrayRef<CudaLauncher> cuda_move_launchers();
llvm::ArrayRef<CudaLauncher> cuda_index_launchers();
llvm::ArrayRef<CudaLauncher> cuda_reduce_launchers();
llvm::ArrayRef<CudaLauncher> cuda_norm_launchers();
llvm::ArrayRef<CudaLauncher> cuda_loss_launchers();
llvm::ArrayRef<CudaLauncher> cuda_attention_launchers();
llvm::ArrayRef<CudaLauncher> cuda_update_launchers();
llvm::ArrayRef<CudaLauncher> cuda_pool_launchers();
llvm::ArrayRef<CudaLauncher> cuda_resize_launchers();
llvm::ArrayRef<CudaLauncher> cuda_product_launchers();
llvm::ArrayRef<CudaLauncher> cuda_convolution_launchers();
llvm::ArrayRef<CudaLauncher> cuda_library_launchers();

std::vector<const CudaLauncher*> all_cuda_launchers();

}  // namespace plimsoll
