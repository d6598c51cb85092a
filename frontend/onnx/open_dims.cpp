#include "frontend/onnx/open_dims.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

namespace plimsoll {

std::string open_dim_name(const onnx::ValueInfoProto& value, int axis) {
  const auto& dim = value.type().tensor_type().shape().dim(axis);
  if (dim.has_dim_value()) return "";
  return dim.dim_param().empty() ? value.name() + "." + std::to_string(axis) : dim.dim_param();
}

std::vector<OpenDim> open_dims(const onnx::GraphProto& graph) {
  llvm::StringSet<> weights;
  for (const onnx::TensorProto& weight : graph.initializer()) weights.insert(weight.name());
  std::vector<OpenDim> dims;
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (weights.contains(input.name())) continue;
    for (int axis = 0; axis < input.type().tensor_type().shape().dim_size(); ++axis) {
      std::string name = open_dim_name(input, axis);
      if (name.empty()) continue;
      auto known = llvm::find_if(dims, [&](const OpenDim& dim) { return dim.name == name; });
      if (known == dims.end()) known = dims.insert(known, {std::move(name), input.name()});
      known->leads |= axis == 0;
    }
  }
  return dims;
}

}  // namespace plimsoll
