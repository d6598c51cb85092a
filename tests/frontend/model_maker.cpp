#include "tests/frontend/model_maker.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

void declare(onnx::ValueInfoProto& info, const std::string& name, const std::vector<std::string>& dims, DType dtype) {
  info.set_name(name);
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(dtype_to_onnx(dtype));
  tensor.mutable_shape();
  for (const std::string& dim : dims) {
    int64_t size = 0;
    if (llvm::StringRef(dim).getAsInteger(10, size))
      tensor.mutable_shape()->add_dim()->set_dim_param(dim);
    else
      tensor.mutable_shape()->add_dim()->set_dim_value(size);
  }
}

onnx::AttributeProto& attribute(onnx::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  return attribute;
}

}  // namespace

ModelMaker::ModelMaker(int64_t opset) {
  proto_.set_ir_version(10);
  proto_.add_opset_import()->set_version(opset);
  proto_.mutable_graph()->set_name("g");
}

ModelMaker& ModelMaker::input(const std::string& name, const std::vector<std::string>& dims, DType dtype) {
  declare(*graph().add_input(), name, dims, dtype);
  return *this;
}

ModelMaker& ModelMaker::output(const std::string& name, const std::vector<std::string>& dims, DType dtype) {
  declare(*graph().add_output(), name, dims, dtype);
  return *this;
}

ModelMaker& ModelMaker::weight(const std::string& name, const Tensor& value) {
  *graph().add_initializer() = tensor_proto(name, value);
  return *this;
}

ModelMaker& ModelMaker::external(const std::string& name, std::vector<int64_t> dims, const std::string& location,
                                 int64_t offset) {
  auto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor.add_dims(dim);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair{"location", location}, std::pair{"offset", std::to_string(offset)}}) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  return *this;
}

ModelMaker& ModelMaker::node(const std::string& op, const std::vector<std::string>& inputs,
                             const std::vector<std::string>& outputs, llvm::function_ref<void(onnx::NodeProto&)> more) {
  auto& node = *graph().add_node();
  node.set_op_type(op);
  node.set_name("/" + op + std::to_string(graph().node_size()));
  for (const std::string& name : inputs) node.add_input(name);
  for (const std::string& name : outputs) node.add_output(name);
  more(node);
  return *this;
}

Model ModelMaker::make(const std::string& path) const {
  Result<Model> model = Model::of(proto_, path);
  REQUIRE(static_cast<bool>(model));
  return std::move(*model);
}

void set_int(onnx::NodeProto& node, const std::string& name, int64_t value) { attribute(node, name).set_i(value); }

void set_ints(onnx::NodeProto& node, const std::string& name, const std::vector<int64_t>& values) {
  auto& list = attribute(node, name);
  for (int64_t value : values) list.add_ints(value);
}

void set_float(onnx::NodeProto& node, const std::string& name, float value) { attribute(node, name).set_f(value); }

void set_graph(onnx::NodeProto& node, const std::string& name, const onnx::GraphProto& body) {
  *attribute(node, name).mutable_g() = body;
}

onnx::TensorProto tensor_proto(const std::string& name, const Tensor& value) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(dtype_to_onnx(value.type().dtype));
  for (int64_t dim : value.type().shape) tensor.add_dims(dim);
  tensor.set_raw_data(value.data(), static_cast<size_t>(value.type().bytes()));
  return tensor;
}

}  // namespace plimsoll
