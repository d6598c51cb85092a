#include "frontend/onnx/quantised_weights.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {
namespace {

bool holds_codes(const onnx::TensorProto& tensor) {
  if (four_bits_of(tensor)) return true;
  switch (tensor.data_type()) {
    case onnx::TensorProto::INT8:
    case onnx::TensorProto::UINT8:
    case onnx::TensorProto::FLOAT8E4M3FN:
    case onnx::TensorProto::FLOAT8E5M2: return tensor.dims_size() >= 2;
    default: return false;
  }
}

}  // namespace

llvm::StringSet<> find_quantised_weights(const onnx::GraphProto& graph) {
  llvm::StringMap<const onnx::TensorProto*> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers[tensor.name()] = &tensor;
  llvm::StringSet<> names;
  const auto add_from = [&](const onnx::NodeProto& node, int first) {
    for (int i = first; i < node.input_size(); ++i)
      if (const onnx::TensorProto* tensor = initializers.lookup(node.input(i)); tensor && tensor->dims_size() > 0)
        names.insert(node.input(i));
  };
  for (const onnx::NodeProto& node : graph.node()) {
    if (node.op_type() == "DequantizeLinear" && node.input_size() > 0) {
      const onnx::TensorProto* codes = initializers.lookup(node.input(0));
      if (codes && holds_codes(*codes)) add_from(node, 0);
    }
    if (node.op_type() == "MatMulNBits" || node.op_type() == "MatMulBnb4") add_from(node, 1);
  }
  return names;
}

}  // namespace plimsoll
