#pragma once

// Questions about a call's operands and results that the kernels' `accepts` share.

#include "ir/op_def.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

inline bool accepts_everything(const OpCall&, llvm::ArrayRef<Type>) { return true; }

// Holds for every operand that is there, from `first` on.
template <typename Holds>
bool all_operands(const OpCall& call, Holds holds, size_t first = 0) {
  for (size_t i = first; i < call.count(); ++i)
    if (call.has(i) && !holds(call.operand(i))) return false;
  return true;
}

template <typename Holds>
bool all_tensors(const OpCall& call, llvm::ArrayRef<Type> results, Holds holds) {
  return all_operands(call, holds) && llvm::all_of(results, holds);
}

inline bool is_absent_or(const OpCall& call, llvm::StringRef operand, DType dtype) {
  return !call.has(operand) || call[operand].dtype == dtype;
}

// The types whose arithmetic CUDA kernels do in f32.
inline bool computes_in_f32(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16; }
inline bool is_f8(DType dtype) { return dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }
inline bool is_label(DType dtype) { return dtype == DType::I64 || dtype == DType::I32; }

// No operand and no result has more dimensions than a loop nest.
inline bool ranks_fit(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_tensors(call, results, [](const Type& type) { return type.rank() <= max_rank; });
}

inline bool has_no_f8(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_tensors(call, results, [](const Type& type) { return !is_f8(type.dtype); });
}

inline bool ranks_fit_without_f8(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit(call, results) && has_no_f8(call, results);
}

// Every tensor is f32, and no rank exceeds what the loop nests hold.
inline bool all_f32(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit(call, results) &&
         all_tensors(call, results, [](const Type& type) { return type.dtype == DType::F32; });
}

// Every float tensor is f32; there may be integers and bools besides.
inline bool floats_are_f32(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit(call, results) &&
         all_tensors(call, results, [](const Type& type) { return !is_float(type.dtype) || type.dtype == DType::F32; });
}

// Every tensor is a float of operand 0's type, which computes in f32.
inline bool one_float_type(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype;
  return computes_in_f32(dtype) && all_tensors(call, results, [&](const Type& type) { return type.dtype == dtype; });
}

// A repeat takes two dimensions of a nest.
inline bool ranks_fit_twice(const OpCall&, llvm::ArrayRef<Type> results) { return 2 * results[0].rank() <= max_rank; }

}  // namespace plimsoll
