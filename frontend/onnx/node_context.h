#pragma once

// Gives an import function its ONNX node and lets it emit our ops.
//
// Failures are sticky: after the first one every emit returns None and every type is a scalar. A function may continue,
// but must check ranks, or use dim(), before it indexes a shape.

#include "frontend/onnx/import.h"
#include "ir/builder.h"

namespace plimsoll {

class Importer;
struct ImportRow;

// An ONNX value during import.
struct Item {
  enum class Kind : uint8_t {
    Absent,  // an optional input left out, or an empty optional
    Tensor,
    Sequence,
    Unknown,  // the value depends on an obstacle
  } kind = Kind::Absent;
  ValueId tensor = ValueId::None;
  std::vector<ValueId> elements;  // the elements of a sequence

  static Item of(ValueId tensor) { return {Kind::Tensor, tensor, {}}; }
  static Item of_elements(std::vector<ValueId> elements) {
    return {Kind::Sequence, ValueId::None, std::move(elements)};
  }
  static Item unknown() { return {Kind::Unknown, ValueId::None, {}}; }
};

using ValueList = llvm::SmallVector<ValueId, 4>;

class NodeContext {
 public:
  NodeContext(Importer& importer, const onnx::NodeProto& node, const ImportRow& row, int64_t opset,
              llvm::ArrayRef<Item> inputs);

  const onnx::NodeProto& node() const { return node_; }
  const ImportRow& row() const { return row_; }
  llvm::StringRef target() const;  // the row's
  int64_t opset() const { return opset_; }
  const ImportOptions& options() const;

  // Inputs. An input is absent if it is not given or has no name.
  size_t input_count() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i].kind != Item::Kind::Absent; }
  const Item& item(size_t i) const { return inputs_[i]; }
  ValueId input(size_t i);  // must be there and be a tensor whose elements are whole bytes
  ValueId codes(size_t i);  // may have 4-bit elements: then it is their bytes
  ValueId optional_input(size_t i) { return has(i) ? input(i) : ValueId::None; }
  ValueList inputs();                       // all of them
  std::vector<ValueId> sequence(size_t i);  // must be a sequence

  // Values.
  const Type& type(ValueId value) const;  // valid until the next emit
  Shape shape(ValueId value) const { return type(value).shape; }
  Shape dims_from(ValueId value, int64_t axis) const;  // the dimensions from an axis on; empty past the rank
  int64_t rank(ValueId value) const { return type(value).rank(); }
  int64_t dim(ValueId value, int64_t axis) const;  // 1 if there is no such axis
  TensorRef constant(ValueId value) const;         // null if the value is not known now
  // Return the known numbers of an input. If they are unknown, this fails and names the graph inputs they depend on.
  Ints known_ints(size_t i, llvm::StringRef what);
  Floats known_floats(size_t i, llvm::StringRef what);
  int64_t known_int(size_t i, llvm::StringRef what);
  // Normalises an axis in [-rank, rank) to [0, rank).
  int64_t axis(int64_t axis, int64_t rank);
  Ints axes(llvm::ArrayRef<int64_t> axes, int64_t rank);
  Ints all_axes(ValueId x, int64_t first = 0) const;           // from `first` on
  Ints axes_or_all(llvm::ArrayRef<int64_t> given, ValueId x);  // normalised; all of x's axes if none are given

  // Attributes.
  const onnx::AttributeProto* attr(llvm::StringRef name) const;
  bool has_attr(llvm::StringRef name) const { return attr(name) != nullptr; }
  int64_t attr_int(llvm::StringRef name, int64_t otherwise) const;
  double attr_float(llvm::StringRef name, double otherwise) const;
  std::string attr_string(llvm::StringRef name, llvm::StringRef otherwise) const;
  Ints attr_ints(llvm::StringRef name) const;  // empty if absent
  Floats attr_floats(llvm::StringRef name) const;
  std::vector<std::string> attr_strings(llvm::StringRef name) const;
  DType attr_dtype(llvm::StringRef name, DType otherwise);
  Tensor attr_tensor(llvm::StringRef name);

  // Emits our ops. A node with constant operands is computed at once.
  ValueId emit(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs = {});
  ValueList emit_all(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs = {});
  ValueId constant_value(Tensor value);
  ValueId scalar(double value, DType dtype) { return constant_value(Tensor::scalar(value, dtype)); }
  // Each returns its argument if there is nothing to do.
  ValueId reshape(ValueId x, llvm::ArrayRef<int64_t> shape);
  ValueId transpose(ValueId x, llvm::ArrayRef<int64_t> permutation);
  ValueId expand(ValueId x, llvm::ArrayRef<int64_t> shape);
  ValueId cast(ValueId x, DType dtype);
  ValueId slice(ValueId x, int64_t axis, int64_t start, int64_t size);
  ValueId select(ValueId x, int64_t axis, int64_t index);  // one slice, without its dimension of 1
  ValueId unsqueeze(ValueId x, int64_t axis);              // inserts a dimension of 1
  ValueId concat(llvm::ArrayRef<ValueId> pieces, int64_t axis);
  ValueId reduce(llvm::StringRef op, ValueId x, llvm::ArrayRef<int64_t> axes, bool keep_dims);

  // Sets an output, each at most once.
  size_t output_count() const { return static_cast<size_t>(node_.output_size()); }
  bool wants(size_t i) const { return i < output_count() && !node_.output(static_cast<int>(i)).empty(); }
  void output(size_t i, ValueId value);
  void output_item(size_t i, Item item);
  llvm::ArrayRef<Item> outputs() const { return outputs_; }
  bool is_given(size_t i) const { return given_[i]; }

  // The importer, for control flow, states and random numbers.
  Importer& importer() { return importer_; }

  void fail(const llvm::Twine& message);
  void fail(Status error);
  bool failed() const { return failed_; }
  // The message of the failure, without the node's name.
  const std::string& failure() const { return failure_; }
  // The graph inputs that a needed but unknown value depends on.
  llvm::ArrayRef<std::string> undecided_inputs() const { return undecided_; }

 private:
  TensorRef known(size_t i, llvm::StringRef what);

  std::string result_name(llvm::StringRef op) const;

  Importer& importer_;
  const onnx::NodeProto& node_;
  const ImportRow& row_;
  int64_t opset_;
  llvm::SmallVector<Item, 4> inputs_;
  llvm::SmallVector<Item, 2> outputs_;
  llvm::SmallVector<bool, 2> given_;
  size_t first_value_;  // later values belong to this node and may take its outputs' names
  bool failed_ = false;
  std::string failure_;
  std::vector<std::string> undecided_;
};

}  // namespace plimsoll
