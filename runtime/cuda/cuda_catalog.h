#pragma once

#include "ir/machine/kernel_catalog.h"
#include "runtime/kernels/cuda_candidate.h"

#include "llvm/ADT/DenseMap.h"

namespace plimsoll {

// The kernels that planning may choose from on a GPU. Needs no CUDA.
class CudaCatalog : public KernelCatalog {
 public:
  // Kernels that give other bits every time are candidates only with `any_order`.
  explicit CudaCatalog(const DeviceDescription& device, bool any_order = false);

  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override;
  // Rows of 16-bit elements that begin at 128-byte borders; the library has no epilogue for the exact gelu.
  KernelPreferences preferences() const override {
    return {.channels_last = true,
            .product_multiple = 64,
            .product_epilogues = true,
            .exact_gelu_epilogues = device_.compute_capability == 90,
            .apart_biases = true,
            .norms_in_bodies = true};
  }

 private:
  DeviceDescription device_;
  llvm::DenseMap<const OpDef*, llvm::SmallVector<const CudaCandidate*, 2>> by_op_;
};

}  // namespace plimsoll
