#include "tests/conformance/node_case.h"

#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

#include <cmath>

namespace plimsoll::conformance {
namespace {

struct DataSet {
  std::vector<Tensor> inputs, outputs;
};

using ValueInfos = google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>;

Result<std::vector<Tensor>> read_tensors(const std::string& folder, llvm::StringRef kind, const ValueInfos& declared) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < declared.size(); ++i) {
    std::string path = folder + "/" + kind.str() + "_" + std::to_string(i) + ".pb";
    auto file = llvm::MemoryBuffer::getFile(path);
    if (!file) return model_error(path + ": " + file.getError().message());
    onnx::TensorProto proto;
    if (!proto.ParseFromArray((*file)->getBufferStart(), static_cast<int>((*file)->getBufferSize())))
      return model_error(path + ": not a tensor");
    // numpy has no bfloat16, so the test data has its bits as uint16.
    bool bits = proto.data_type() == onnx::TensorProto::UINT16;
    if (bits) proto.set_data_type(declared.Get(i).type().tensor_type().elem_type());
    ExternalData none("");
    Result<Tensor> tensor = tensor_from_onnx(proto, none);
    if (!tensor) return tensor.takeError();
    tensors.push_back(std::move(*tensor));
  }
  return tensors;
}

Result<DataSet> read_data_set(const std::string& folder, const onnx::GraphProto& graph) {
  Result<std::vector<Tensor>> inputs = read_tensors(folder, "input", graph.input());
  if (!inputs) return inputs.takeError();
  Result<std::vector<Tensor>> outputs = read_tensors(folder, "output", graph.output());
  if (!outputs) return outputs.takeError();
  return DataSet{std::move(*inputs), std::move(*outputs)};
}

bool draws_random_numbers(const onnx::GraphProto& graph) {
  return llvm::any_of(graph.node(), [](const onnx::NodeProto& node) {
    return node.op_type() == "Dropout" || node.op_type() == "Bernoulli" || starts_with(node.op_type(), "Random");
  });
}

// ONNX's own runner allows a relative 1e-3. That is less than one step of a 16-bit float, so these may differ by two.
bool is_close(double got, double want, DType dtype) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
  if (std::isinf(got) || std::isinf(want)) return got == want;
  double relative = dtype == DType::BF16 ? 0x1p-6 : dtype == DType::F16 ? 0x1p-9 : 1e-3;
  return std::abs(got - want) <= 1e-5 + relative * std::abs(want);
}

// Returns an empty string if both are equal. Random results are compared only where both keep an element, because ONNX
// does not specify the numbers.
std::string compare(const Tensor& got, const Tensor& want, bool random) {
  if (got.type() != want.type()) return "is " + to_string(got.type()) + ", expected " + to_string(want.type());
  DType dtype = want.type().dtype;
  for (int64_t i = 0; i < want.type().elements(); ++i) {
    bool equal = is_float(dtype) ? is_close(got.get(i), want.get(i), dtype) : got.get_int(i) == want.get_int(i);
    bool dropped = random && (got.get(i) == 0 || want.get(i) == 0);
    if (!equal && !dropped)
      return "element " + std::to_string(i) + " is " + std::to_string(got.get(i)) + ", expected " +
             std::to_string(want.get(i));
  }
  return "";
}

// Symbolic dimensions take the sizes of the data.
std::map<std::string, int64_t> dims_of(const onnx::GraphProto& graph, const std::vector<Tensor>& inputs) {
  std::map<std::string, int64_t> dims;
  for (int i = 0; i < graph.input_size(); ++i) {
    const auto& shape = graph.input(i).type().tensor_type().shape();
    for (int axis = 0; axis < shape.dim_size() && axis < inputs[i].type().rank(); ++axis) {
      const auto& dim = shape.dim(axis);
      std::string own = graph.input(i).name() + "." + std::to_string(axis);
      if (!dim.has_dim_value()) dims[dim.dim_param().empty() ? own : dim.dim_param()] = inputs[i].type().shape[axis];
    }
  }
  return dims;
}

// Fixes inputs that decide shapes and settings to their data, if the importer asks for them.
Imported import_case(const Model& model, const std::vector<Tensor>& inputs) {
  const onnx::GraphProto& graph = model.proto().graph();
  ImportOptions options;
  options.training = false;
  options.dims = dims_of(graph, inputs);
  while (true) {
    Imported imported = survey_model(model, options);
    size_t fixed = options.constant_inputs.size();
    for (const Obstacle& obstacle : imported.report.obstacles)
      for (int i = 0; i < graph.input_size(); ++i)
        if (obstacle.kind == Obstacle::Kind::DataDependent && graph.input(i).name() == obstacle.subject)
          options.constant_inputs[obstacle.subject] = inputs[i];
    if (options.constant_inputs.size() == fixed) return imported;
  }
}

struct Bound {
  std::vector<Tensor> states;
  std::map<ValueId, const Tensor*> values;
};

Result<Bound> bind_values(const Model& model, const Graph& graph, const std::vector<Tensor>& inputs) {
  Result<WeightSource> weights = WeightSource::open(model);
  if (!weights) return weights.takeError();
  Bound bound;
  bound.states.reserve(graph.states.size());
  for (const State& state : graph.states) {
    bool stored = state.init.kind == StateInit::Kind::Weights;
    Result<Tensor> value = stored ? weights->load(state.init.source) : Tensor(graph.type(state.value));
    if (!value) return value.takeError();
    bound.states.push_back(std::move(*value));
    bound.values[state.value] = &bound.states.back();
  }
  for (ValueId input : graph.inputs)
    for (int i = 0; i < model.proto().graph().input_size(); ++i)
      if (graph.is_used(input) && model.proto().graph().input(i).name() == graph.value(input).name)
        bound.values[input] = &inputs[i];
  return bound;
}

Verdict failed(Status error) { return {Outcome::Failed, take_diag(std::move(error)).text()}; }

Verdict run_data_set(const Model& model, const DataSet& data, Backend backend) {
  Imported imported = import_case(model, data.inputs);
  if (imported.report.blocked()) return {Outcome::Declined, imported.report.summary()};
  Result<Bound> bound = bind_values(model, imported.graph, data.inputs);
  if (!bound) return failed(bound.takeError());
  Result<std::vector<Tensor>> outputs = backend(imported.graph, bound->values);
  if (!outputs) return failed(outputs.takeError());
  bool random = draws_random_numbers(model.proto().graph());
  for (size_t i = 0; i < data.outputs.size(); ++i)
    if (std::string difference = compare((*outputs)[i], data.outputs[i], random); !difference.empty())
      return {Outcome::Failed, imported.graph.outputs[i].name + " " + difference};
  return {Outcome::Passed, ""};
}

}  // namespace

std::string operator_of(const std::string& folder) {
  llvm::StringRef twin = folder;
  if (twin.consume_back("_expanded") && llvm::sys::fs::exists(twin + "/model.onnx")) return operator_of(twin.str());
  Result<Model> model = Model::read(folder + "/model.onnx");
  if (!model) return llvm::consumeError(model.takeError()), "unreadable";
  std::string last = "none";
  for (const onnx::NodeProto& node : model->proto().graph().node())
    if (last == "none" || (node.op_type() != "Constant" && node.op_type() != "Identity")) last = node.op_type();
  return last;
}

bool has_other_than_tensors(const std::string& folder) {
  Result<Model> model = Model::read(folder + "/model.onnx");
  if (!model) return llvm::consumeError(model.takeError()), false;
  const onnx::GraphProto& graph = model->proto().graph();
  auto other = [](const onnx::ValueInfoProto& info) {
    Result<DType> dtype = dtype_from_onnx(info.type().tensor_type().elem_type());
    return !dtype && (llvm::consumeError(dtype.takeError()), true);
  };
  return llvm::any_of(graph.input(), other) || llvm::any_of(graph.output(), other);
}

Verdict run_case(const std::string& folder, Backend backend) {
  Result<Model> model = Model::read(folder + "/model.onnx");
  if (!model) return {Outcome::Declined, take_diag(model.takeError()).text()};
  if (has_other_than_tensors(folder))
    return {Outcome::Declined, "its inputs or outputs are not all tensors of numbers"};
  for (int set = 0;; ++set) {
    std::string data_folder = folder + "/test_data_set_" + std::to_string(set);
    if (!llvm::sys::fs::exists(data_folder)) break;
    Result<DataSet> data = read_data_set(data_folder, model->proto().graph());
    if (!data) return failed(data.takeError());
    Verdict verdict = run_data_set(*model, *data, backend);
    if (verdict.outcome != Outcome::Passed) return verdict;
  }
  return {Outcome::Passed, ""};
}

}  // namespace plimsoll::conformance
