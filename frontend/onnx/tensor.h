#pragma once

// Converts ONNX tensors and element types to ours, inside and beside the model file.

#include "ir/type.h"

#include "third_party/onnx/onnx.pb.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MemoryBuffer.h"

#include <mutex>

namespace plimsoll {

// The files beside a model that hold its large tensors. Each is memory-mapped on first use, so only the tensors that
// are read use memory.
class ExternalData {
 public:
  explicit ExternalData(llvm::StringRef model_path);

  // Returns the bytes of an external tensor. They live as long as this object. Several threads may ask at once.
  Result<llvm::StringRef> bytes(const onnx::TensorProto& tensor);
  // False where there is no such file. An error where there may not be one: outside the model's folder, also by way of
  // a symbolic link, or where it has too few bytes. The folder of the model file that a link leads to counts as well.
  Result<bool> exists(const onnx::TensorProto& tensor) const;

 private:
  Result<std::string> path_of(const onnx::TensorProto& tensor) const;
  Status check_place(const onnx::TensorProto& tensor, llvm::StringRef path) const;

  std::string folder_;
  llvm::SmallVector<std::string, 2> real_folders_;
  std::mutex guards_files_;
  llvm::StringMap<std::unique_ptr<llvm::MemoryBuffer>> files_;
};

// Fails for strings, complex numbers and 4-bit types.
Result<DType> dtype_from_onnx(int32_t data_type);
onnx::TensorProto::DataType dtype_to_onnx(DType dtype);

// A tensor of INT4 or UINT4, which is stored as bytes: two elements in each, the first in its low half.
struct FourBits {
  bool is_signed = false;
  Shape shape;  // of the elements
};
std::optional<FourBits> four_bits_of(const onnx::TensorProto& tensor);

bool is_external(const onnx::TensorProto& tensor);
// Are as many elements stored in the proto as its shape has?
Status check_stored_inside(const onnx::TensorProto& tensor, const Type& type);
// The type of what is stored: of 4-bit elements that of their bytes, u8[n].
Result<Type> stored_type_from_onnx(const onnx::TensorProto& tensor);
Result<Tensor> stored_from_onnx(const onnx::TensorProto& tensor, ExternalData& data);
// Refuses 4-bit elements.
Result<Tensor> tensor_from_onnx(const onnx::TensorProto& tensor, ExternalData& data);
// Copies as many elements as `into` has, from `first` on. They lie within what is stored, whose dtype `into` has.
Status copy_range_from_onnx(const onnx::TensorProto& tensor, ExternalData& data, int64_t first, const TensorView& into);

}  // namespace plimsoll
