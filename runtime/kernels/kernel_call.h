#pragma once

#include "ir/op_def.h"
#include "kernels/scalar.h"

namespace plimsoll {

// A cast, because both list the same types in the same order.
constexpr Scalar scalar_of(DType dtype) { return static_cast<Scalar>(dtype); }
static_assert(static_cast<int>(Scalar::Bool) + 1 == dtype_count && scalar_of(DType::F64) == Scalar::F64 &&
              scalar_of(DType::F32) == Scalar::F32 && scalar_of(DType::BF16) == Scalar::BF16 &&
              scalar_of(DType::F16) == Scalar::F16 && scalar_of(DType::F8E4M3) == Scalar::F8E4M3 &&
              scalar_of(DType::F8E5M2) == Scalar::F8E5M2 && scalar_of(DType::I64) == Scalar::I64 &&
              scalar_of(DType::I32) == Scalar::I32 && scalar_of(DType::I16) == Scalar::I16 &&
              scalar_of(DType::I8) == Scalar::I8 && scalar_of(DType::U64) == Scalar::U64 &&
              scalar_of(DType::U32) == Scalar::U32 && scalar_of(DType::U16) == Scalar::U16 &&
              scalar_of(DType::U8) == Scalar::U8 && scalar_of(DType::Bool) == Scalar::Bool);

// One launch, as the kernels of both backends see it. Operands and results are asked for by the names of the op's
// record, or by place in code that serves many ops; a name is compared with a few others, and nothing is allocated.
// Result bytes may overlap operand bytes only as the record allows.
struct KernelCall {
  const OpCall& call;
  llvm::ArrayRef<TensorView> operands;  // an absent one has no data
  llvm::ArrayRef<TensorView> results;
  void* workspace = nullptr;

  bool has(PortKey operand) const { return call.has(operand); }
  const Attrs& attrs() const { return call.attrs; }
  // These must be there.
  const TensorView& operand(PortKey name) const { return operands[call.index(name)]; }
  const TensorView& result(PortKey name) const { return results[call.result_index(name)]; }

  // Null when the operand is absent.
  template <typename T = void>
  const T* in(PortKey name) const {
    return has(name) ? operand(name).as<T>() : nullptr;
  }
  template <typename T = void>
  T* out(PortKey name) const {
    return result(name).as<T>();
  }
  // Null when the call does not give the result.
  template <typename T = void>
  T* out_if_given(llvm::StringRef name) const {
    return call.gives(name) ? out<T>(name) : nullptr;
  }
  Scalar in_scalar(PortKey name) const { return scalar_of(operand(name).type.dtype); }
  Scalar out_scalar(PortKey name) const { return scalar_of(result(name).type.dtype); }
  template <typename T>
  T* scratch() const {
    return static_cast<T*>(workspace);
  }
  llvm::ArrayRef<int64_t> in_shape(PortKey name) const { return call[name].shape; }
  llvm::ArrayRef<int64_t> out_shape(PortKey name) const { return result(name).type.shape; }
  // Of result 0.
  int64_t elements() const { return results[0].type.elements(); }
  int element_bytes() const { return static_cast<int>(dtype_bytes(results[0].type.dtype)); }
  Types result_types() const {
    Types types;
    for (const TensorView& result : results) types.push_back(result.type);
    return types;
  }
};

}  // namespace plimsoll
