#include "frontend/onnx/save.h"

#include "ir/support/output_file.h"

#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

namespace plimsoll {
namespace {

constexpr int64_t max_bytes_inside = int64_t{1} << 30;  // a protobuf file holds at most 2 GiB
constexpr int64_t min_bytes_outside = 1024;             // smaller tensors stay in the model file
constexpr uint64_t data_alignment = 4096;               // so that readers can map single tensors

Result<Tensor> value_of(const WeightSource& weights, const Weight& weight, NewWeight new_weight) {
  Result<std::optional<Tensor>> replaced = new_weight(weight.name);
  if (!replaced) return replaced.takeError();
  if (!*replaced) return weights.load(weight.name);
  if ((*replaced)->type() != weight.type)
    return model_error(weight.name + ": is " + to_string(weight.type) + ", its new value " +
                       to_string((*replaced)->type()));
  return std::move(**replaced);
}

void add_entry(onnx::TensorProto& tensor, llvm::StringRef key, const std::string& value) {
  auto* entry = tensor.add_external_data();
  entry->set_key(key.str());
  entry->set_value(value);
}

// Returns the tensor's declaration without its values.
onnx::TensorProto declaration(const onnx::TensorProto& tensor) {
  onnx::TensorProto bare;
  bare.set_name(tensor.name());
  bare.set_data_type(tensor.data_type());
  *bare.mutable_dims() = tensor.dims();
  bare.set_doc_string(tensor.doc_string());
  *bare.mutable_metadata_props() = tensor.metadata_props();
  return bare;
}

void store_inside(onnx::TensorProto& tensor, const Tensor& value) {
  tensor = declaration(tensor);
  tensor.set_raw_data(value.data(), static_cast<size_t>(value.type().bytes()));
}

void store_outside(onnx::TensorProto& tensor, const Tensor& value, llvm::raw_ostream& data,
                   const std::string& location) {
  uint64_t padding = (data_alignment - data.tell() % data_alignment) % data_alignment;
  data.write_zeros(static_cast<unsigned>(padding));
  tensor = declaration(tensor);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  add_entry(tensor, "location", location);
  add_entry(tensor, "offset", std::to_string(data.tell()));
  add_entry(tensor, "length", std::to_string(value.type().bytes()));
  data.write(static_cast<const char*>(value.data()), static_cast<size_t>(value.type().bytes()));
}

bool is_read(const onnx::GraphProto& graph, const std::string& name) {
  for (const onnx::ValueInfoProto& output : graph.output())
    if (output.name() == name) return true;
  for (const onnx::NodeProto& node : graph.node())
    for (const std::string& input : node.input())
      if (input == name) return true;
  return false;
}

// Batch norms use their running statistics and dropout keeps everything. The importer brings both back to training.
void use_inference_mode(onnx::GraphProto& graph) {
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    if (node.op_type() == "Dropout" && node.input_size() == 3) node.mutable_input()->RemoveLast();
    if (node.op_type() != "BatchNormalization") continue;
    while (node.output_size() > 1 && !is_read(graph, node.output(node.output_size() - 1)))
      node.mutable_output()->RemoveLast();
    for (onnx::AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.name() == "training_mode" && node.output_size() == 1) attribute.set_i(0);
  }
}

}  // namespace

Status save_model(const Model& model, llvm::StringRef path, NewWeight new_weight) {
  Result<WeightSource> weights = WeightSource::open(model);
  if (!weights) return weights.takeError();
  int64_t bytes = 0;
  bool outside = false;
  for (const Weight& weight : weights->weights()) {
    bytes += weight.type.bytes();
    outside |= weight.place != Weight::Place::Inside;
  }
  outside |= bytes > max_bytes_inside;

  onnx::ModelProto copy = model.proto();
  use_inference_mode(*copy.mutable_graph());
  std::string location = llvm::sys::path::filename(path).str() + ".data";
  auto store_all = [&](llvm::raw_ostream& data) -> Status {
    for (int i = 0; i < copy.graph().initializer_size(); ++i) {
      const Weight& weight = weights->weights()[i];
      Result<Tensor> value = value_of(*weights, weight, new_weight);
      if (!value) return value.takeError();
      onnx::TensorProto& tensor = *copy.mutable_graph()->mutable_initializer(i);
      if (outside && weight.type.bytes() >= min_bytes_outside)
        store_outside(tensor, *value, data, location);
      else
        store_inside(tensor, *value);
    }
    return Status::success();
  };
  Status stored = outside ? write_output_file((path + ".data").str(), store_all) : store_all(llvm::nulls());
  if (stored) return stored;
  return write_output_file(path, [&](llvm::raw_ostream& out) -> Status {
    std::string text;
    if (!copy.SerializeToString(&text)) return system_error(path + ": the model is too large for one protobuf file");
    out << text;
    return Status::success();
  });
}

}  // namespace plimsoll
