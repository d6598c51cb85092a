#pragma once

// ONNX tensors and element types as ours, wherever their bytes lie.

#include "ir/type.h"

#include "third_party/onnx/onnx.pb.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MemoryBuffer.h"

namespace plimsoll {

// The files beside a model that hold its larger tensors. Each is memory-mapped when first asked for, so
// a model of any size costs what is read of it. Not for use from several threads at once.
class ExternalData {
 public:
  explicit ExternalData(std::string folder) : folder_(std::move(folder)) {}

  // The stored bytes of an external tensor; they live as long as this object.
  Result<llvm::StringRef> bytes(const onnx::TensorProto& tensor);
  bool exists(const onnx::TensorProto& tensor) const;

 private:
  Result<std::string> path_of(const onnx::TensorProto& tensor) const;

  std::string folder_;
  llvm::StringMap<std::unique_ptr<llvm::MemoryBuffer>> files_;
};

// Strings, complex numbers and 4-bit types have no counterpart.
Result<DType> dtype_from_onnx(int32_t data_type);
onnx::TensorProto::DataType dtype_to_onnx(DType dtype);

bool is_external(const onnx::TensorProto& tensor);
Result<Type> type_from_onnx(const onnx::TensorProto& tensor);
Result<Tensor> tensor_from_onnx(const onnx::TensorProto& tensor, ExternalData& data);

}  // namespace plimsoll
