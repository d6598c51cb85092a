#pragma once

// Makes small ONNX models for tests.

#include "frontend/onnx/import.h"

namespace plimsoll {

class ModelMaker {
 public:
  explicit ModelMaker(int64_t opset = 20);

  // Dimensions are numbers or names: "2", "batch".
  ModelMaker& input(const std::string& name, const std::vector<std::string>& dims, DType dtype = DType::F32);
  ModelMaker& output(const std::string& name, const std::vector<std::string>& dims = {}, DType dtype = DType::F32);
  ModelMaker& weight(const std::string& name, const Tensor& value);
  // The weights are external: 4 bytes per element from `offset` of `location`.
  ModelMaker& external(const std::string& name, std::vector<int64_t> dims, const std::string& location, int64_t offset);
  // The node is named "/" + op + its number; `attributes` sets more.
  ModelMaker& node(
      const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
      llvm::function_ref<void(onnx::NodeProto&)> more = [](onnx::NodeProto&) {});
  onnx::ModelProto& proto() { return proto_; }
  onnx::GraphProto& graph() { return *proto_.mutable_graph(); }

  Model make(const std::string& path = "model.onnx") const;

 private:
  onnx::ModelProto proto_;
};

void set_int(onnx::NodeProto& node, const std::string& name, int64_t value);
void set_ints(onnx::NodeProto& node, const std::string& name, const std::vector<int64_t>& values);
void set_float(onnx::NodeProto& node, const std::string& name, float value);
void set_graph(onnx::NodeProto& node, const std::string& name, const onnx::GraphProto& body);

onnx::TensorProto tensor_proto(const std::string& name, const Tensor& value);

}  // namespace plimsoll
