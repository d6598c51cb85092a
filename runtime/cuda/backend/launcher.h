#pragma once

// How a candidate of runtime/kernels is prepared and launched. Rows map an op's operands to the plain functions of
// kernels/cuda; they check nothing that inference has checked.

#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

#include <cuda_runtime_api.h>

#include <memory>

namespace plimsoll {

class CudaLibraries;  // handles of cuBLASLt and cuDNN, runtime/cuda/backend/libraries.h

// A kernel prepares this once per instruction when a plan is loaded: library plans and descriptors.
class CudaPrepared {
 public:
  virtual ~CudaPrepared() = default;
  // Bytes that it uses of its workspace; 0 where the library does not say.
  virtual int64_t workspace_bytes() const { return 0; }
};

// Pointers are device memory; nothing is copied or waited for, everything goes to `stream`. Operands, results and
// workspace start at 256-byte borders.
struct CudaCall : KernelCall {
  int64_t workspace_bytes = 0;       // what the candidate asked for when the plan was made
  int algorithm = 0;                 // which of the candidate's
  CudaPrepared* prepared = nullptr;  // what the launcher's prepare returned, if it has one
  cudaStream_t stream = nullptr;
};

struct CudaLauncher {
  // Sees device pointers that hold no data yet. Must leave nothing allocated on the device.
  using PrepareFn = Result<std::unique_ptr<CudaPrepared>> (*)(CudaLibraries& libraries, const CudaCall& call);
  // Errors only where the call itself is refused; what a kernel does wrong shows up at the stream's next check.
  using LaunchFn = Status (*)(const CudaCall& call);
  // May one launch do both? Asked of calls that do not depend on each other.
  using JoinsFn = bool (*)(const CudaCall& first, const CudaCall& next);
  using LaunchGroupFn = Status (*)(llvm::ArrayRef<CudaCall> calls);

  const OpDef& op;
  llvm::StringLiteral name;  // of the candidate
  LaunchFn launch;
  PrepareFn prepare = nullptr;
  JoinsFn joins = nullptr;  // with launch_group: calls that all join the first of them
  LaunchGroupFn launch_group = nullptr;
};

// The families of runtime/kernels, one file each.
llvm::ArrayRef<CudaLauncher> attention_launchers();
llvm::ArrayRef<CudaLauncher> collective_launchers();
llvm::ArrayRef<CudaLauncher> conv_launchers();
llvm::ArrayRef<CudaLauncher> dense_conv_launchers();
llvm::ArrayRef<CudaLauncher> elementwise_launchers();
llvm::ArrayRef<CudaLauncher> grouped_conv_launchers();
llvm::ArrayRef<CudaLauncher> index_launchers();
llvm::ArrayRef<CudaLauncher> loss_launchers();
llvm::ArrayRef<CudaLauncher> matmul_launchers();
llvm::ArrayRef<CudaLauncher> move_launchers();
llvm::ArrayRef<CudaLauncher> norm_launchers();
llvm::ArrayRef<CudaLauncher> plane_taps_launchers();
llvm::ArrayRef<CudaLauncher> pool_launchers();
llvm::ArrayRef<CudaLauncher> reduce_launchers();
llvm::ArrayRef<CudaLauncher> resize_launchers();
llvm::ArrayRef<CudaLauncher> update_launchers();
llvm::ArrayRef<CudaLauncher> volume_conv_launchers();

// The first call ends the program when a candidate has no launcher.
const CudaLauncher& launcher_of(const CudaCandidate& candidate);

// Success, or an error that names the op and the shape that a kernel refused.
Status launched(const CudaCall& k, cudaError_t error);

}  // namespace plimsoll
