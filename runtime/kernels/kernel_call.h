#pragma once

#include "ir/op_def.h"

namespace plimsoll {

// One launch, as the kernels of both backends see it. Result bytes may overlap operand bytes only as the op's record
// allows.
struct KernelCall {
  const OpDef& op;
  const OpCall& call;
  llvm::ArrayRef<TensorView> operands;  // an absent one has no data
  llvm::ArrayRef<TensorView> results;
  void* workspace = nullptr;

  bool has(size_t i) const { return call.has(i); }
  const Attrs& attrs() const { return call.attrs; }
  // Operand i, or null when absent; result i.
  template <typename T = void>
  const T* in(size_t i) const {
    return has(i) ? operands[i].as<T>() : nullptr;
  }
  template <typename T = void>
  T* out(size_t i) const {
    return results[i].as<T>();
  }
  template <typename T>
  T* scratch() const {
    return static_cast<T*>(workspace);
  }
  llvm::ArrayRef<int64_t> in_shape(size_t i) const { return call.operand(i).shape; }
  llvm::ArrayRef<int64_t> out_shape(size_t i) const { return results[i].type.shape; }
  int64_t elements() const { return results[0].type.elements(); }
  int element_bytes() const { return static_cast<int>(dtype_bytes(results[0].type.dtype)); }
  Types result_types() const {
    Types types;
    for (const TensorView& result : results) types.push_back(result.type);
    return types;
  }
};

}  // namespace plimsoll
