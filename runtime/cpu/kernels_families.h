#pragma once

// The families the kernel table is made of, one launch_*.cpp each, and what their launchers share.

#include "runtime/cpu/kernels.h"
#include "runtime/kernels/loop_nests.h"

namespace plimsoll {

llvm::ArrayRef<CpuKernel> unary_kernels();
llvm::ArrayRef<CpuKernel> binary_kernels();
llvm::ArrayRef<CpuKernel> move_kernels();
llvm::ArrayRef<CpuKernel> index_kernels();
llvm::ArrayRef<CpuKernel> product_kernels();
llvm::ArrayRef<CpuKernel> reduce_kernels();
llvm::ArrayRef<CpuKernel> norm_kernels();
llvm::ArrayRef<CpuKernel> loss_kernels();
llvm::ArrayRef<CpuKernel> attention_kernels();
llvm::ArrayRef<CpuKernel> update_kernels();
llvm::ArrayRef<CpuKernel> conv_kernels();
llvm::ArrayRef<CpuKernel> pool_kernels();
llvm::ArrayRef<CpuKernel> resize_kernels();

// ---- What kernels accept ----

// Every present operand and every result is f32, and no rank exceeds what the loop nests hold.
bool all_f32(const OpCall& call, llvm::ArrayRef<Type> results);
// Ranks alone: for kernels that move bytes of any dtype.
bool ranks_fit(const OpCall& call, llvm::ArrayRef<Type> results);
// All that is a float is f32; integers and bools as they are.
bool floats_are_f32(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
