#pragma once

// The CPU's answers to what planning asks about kernels. Formulas of shapes alone: no device is looked at.

#include "ir/machine/kernel_catalog.h"
#include "runtime/cpu/kernels.h"

namespace plimsoll {

class CpuCatalog : public KernelCatalog {
 public:
  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override;

 private:
  CpuKernelTable table_;
};

}  // namespace plimsoll
