#pragma once

#include "runtime/cpu/kernels.h"

namespace plimsoll {

// The kernel of fused ops, in the form of a row of the table.
bool accepts_fused(const OpCall& call, llvm::ArrayRef<Type> results);
Result<std::unique_ptr<PreparedKernel>> prepare_fused(cpu::Library& library, const OpCall& call,
                                                      llvm::ArrayRef<Type> results);
Status launch_fused(const CpuCall& call);
int64_t fused_workspace(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
