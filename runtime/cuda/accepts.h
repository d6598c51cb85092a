#pragma once

// What the CUDA kernels accept, in the words several families share.

#include "runtime/cuda/candidates.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

inline bool is_f8(DType dtype) { return dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }

// f64, f32, bf16 or f16.
inline bool is_wide_float(DType dtype) { return is_float(dtype) && !is_f8(dtype); }

// No operand and no result has more dimensions than a loop nest.
inline bool ranks_fit_nests(const OpCall& call, llvm::ArrayRef<Type> results) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && call.operand(i).rank() > max_rank) return false;
  return llvm::all_of(results, [](const Type& type) { return type.rank() <= max_rank; });
}

// Nor is any F8.
inline bool has_no_f8(const OpCall& call, llvm::ArrayRef<Type> results) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && is_f8(call.operand(i).dtype)) return false;
  return llvm::none_of(results, [](const Type& type) { return is_f8(type.dtype); });
}

}  // namespace plimsoll
