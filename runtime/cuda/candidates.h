#pragma once

// The table of CUDA kernels as planning sees it: for each op the candidates in order of preference, what each
// accepts and what workspace it takes. Needs no CUDA; the launchers of the same names stand in runtime/cuda/backend.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

struct CudaCandidate {
  using AcceptsFn = bool (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  // A formula of shapes and of the device's description: plans do not depend on the machine that makes them.
  using WorkspaceFn = int64_t (*)(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device);

  llvm::StringLiteral op;
  llvm::StringLiteral name;
  AcceptsFn accepts;
  WorkspaceFn workspace_bytes = nullptr;  // none: 0
  bool any_order = false;                 // its sums run in another order every time, and give other bits
};

// The families the table is made of, one candidates_*.cpp each.
llvm::ArrayRef<CudaCandidate> cuda_elementwise_candidates();
llvm::ArrayRef<CudaCandidate> cuda_move_candidates();
llvm::ArrayRef<CudaCandidate> cuda_index_candidates();
llvm::ArrayRef<CudaCandidate> cuda_reduce_candidates();
llvm::ArrayRef<CudaCandidate> cuda_norm_candidates();
llvm::ArrayRef<CudaCandidate> cuda_loss_candidates();
llvm::ArrayRef<CudaCandidate> cuda_attention_candidates();
llvm::ArrayRef<CudaCandidate> cuda_update_candidates();
llvm::ArrayRef<CudaCandidate> cuda_pool_candidates();
llvm::ArrayRef<CudaCandidate> cuda_resize_candidates();
llvm::ArrayRef<CudaCandidate> cuda_product_candidates();      // cuBLASLt
llvm::ArrayRef<CudaCandidate> cuda_convolution_candidates();  // cuDNN
llvm::ArrayRef<CudaCandidate> cuda_library_candidates();      // cuDNN: attention

class CudaCatalog : public KernelCatalog {
 public:
  // Kernels that give other bits every time are candidates only with `any_order`.
  explicit CudaCatalog(const DeviceDescription& device, bool any_order = false);

  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override;
  // Rows of 16-bit elements that begin at 128-byte borders.
  KernelPreferences preferences() const override {
    return {.channels_last = true, .product_multiple = 64, .product_epilogues = true};
  }

 private:
  DeviceDescription device_;
  llvm::StringMap<llvm::SmallVector<const CudaCandidate*, 2>> by_op_;
};

// Every row of every family; the last of all, whose op is empty, runs the reference on the host and accepts everything.
std::vector<const CudaCandidate*> all_cuda_candidates();

}  // namespace plimsoll
