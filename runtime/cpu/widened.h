#pragma once

// Lets every f32 kernel serve bf16 and f16: 16-bit operands are converted into workspace, the kernel runs in f32
// there, and each result is rounded once as it is stored, which is what the references do.

#include "runtime/cpu/kernels.h"

namespace plimsoll {

// A call as the f32 kernel sees it: every bf16 or f16 type is f32, everything else as it was.
class WidenedCall {
 public:
  WidenedCall(const OpCall& call, llvm::ArrayRef<Type> results);
  WidenedCall(const WidenedCall&) = delete;

  OpCall call() const { return OpCall(op_, attrs_, operand_types_); }
  llvm::ArrayRef<Type> results() const { return results_; }
  bool changes_anything() const { return copies_bytes_ > 0; }
  int64_t copies_bytes() const { return copies_bytes_; }  // of workspace, below what the kernel itself asks for

 private:
  const OpDef& op_;
  const Attrs& attrs_;
  llvm::SmallVector<Type, 6> operands_;
  llvm::SmallVector<const Type*, 6> operand_types_;
  Types results_;
  int64_t copies_bytes_ = 0;
};

Status launch_widened(const CpuKernel& kernel, const CpuCall& k);

}  // namespace plimsoll
