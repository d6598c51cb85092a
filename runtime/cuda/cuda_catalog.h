#pragma once

#include "ir/machine/kernel_catalog.h"
#include "runtime/kernels/left_matmul.h"

#include "llvm/ADT/DenseMap.h"

#include <mutex>
#include <optional>
#include <unordered_map>

namespace plimsoll {

// The kernels that planning may choose from on a GPU. Needs no CUDA. May be asked by several threads.
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
            .norms_in_bodies = true,
            .left_product_size = device_.compute_capability == 90 ? max_left_product_size : 0};
  }

 private:
  std::vector<KernelCandidate> find_candidates(llvm::ArrayRef<const CudaCandidate*> of_op, const OpCall& call,
                                               llvm::ArrayRef<Type> results) const;

  // A call that was asked for, with what accepts it.
  struct KnownCall {
    KnownCall(const OpCall& call, llvm::ArrayRef<Type> results);
    bool is(const OpCall& call, llvm::ArrayRef<Type> results) const;

    const OpDef* op;
    Attrs attrs;
    llvm::SmallVector<std::optional<Type>, 4> operands;
    std::vector<Type> results;
    std::vector<KernelCandidate> candidates;
  };

  DeviceDescription device_;
  llvm::DenseMap<const OpDef*, llvm::SmallVector<const CudaCandidate*, 2>> by_op_;
  mutable std::mutex mutex_;
  mutable std::unordered_multimap<size_t, KnownCall> known_;  // by a hash of the op and the shapes
};

}  // namespace plimsoll
