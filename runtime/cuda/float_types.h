#pragma once

// Questions that the candidates' `accepts` share.

#include "runtime/cuda/candidates.h"

namespace plimsoll {

// The types whose arithmetic the kernels do in f32.
inline bool computes_in_f32(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16; }

// Operand i is absent or of that type.
inline bool is_absent_or(const OpCall& call, size_t i, DType dtype) {
  return !call.has(i) || call.operand(i).dtype == dtype;
}

// Every operand and result is a float of operand 0's type, which computes in f32.
inline bool one_float_type(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype;
  if (!computes_in_f32(dtype)) return false;
  for (size_t i = 0; i < call.count(); ++i)
    if (!is_absent_or(call, i, dtype)) return false;
  for (const Type& result : results)
    if (result.dtype != dtype) return false;
  return true;
}

}  // namespace plimsoll
