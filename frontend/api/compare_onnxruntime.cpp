#include "frontend/api/compare_onnxruntime.h"

#include "frontend/onnx/import.h"
#include "ir/support/output_file.h"
#include "ir/support/read_file.h"
#include "runtime/data/safetensors.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Program.h"

#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

// Sums in another order, of values that grow from layer to layer; what differs by more is another operation.
constexpr double limit = 1e-3;
constexpr int no_onnxruntime = 77;

// Tensors go both ways as safetensors files, which take a few lines to read and write.
constexpr llvm::StringLiteral script = R"(
import json, struct, sys
try:
    import numpy as np
    import onnxruntime as ort
except ImportError:
    sys.exit(77)
model, inputs, outputs = sys.argv[1:]
types = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
         "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"}
names = {np.dtype(short): name for name, short in types.items()}
data = open(inputs, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
given = {name: np.frombuffer(data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]],
                             types[entry["dtype"]]).reshape(entry["shape"])
         for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
wanted = {each.name for each in session.get_inputs()}
results = session.run(None, {name: array for name, array in given.items() if name in wanted})
header, body = {}, b""
for each, array in zip(session.get_outputs(), results):
    if not isinstance(array, np.ndarray) or array.dtype not in names:
        continue
    header[each.name] = {"dtype": names[array.dtype], "shape": list(array.shape),
                         "data_offsets": [len(body), len(body) + array.nbytes]}
    body += np.ascontiguousarray(array).tobytes()
text = json.dumps(header).encode()
with open(outputs, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + body)
with open(outputs + ".version", "w") as file:
    file.write(ort.__version__)
)";

Status write_tensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type()});
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    std::memcpy(out, tensors.at(entry.name).data(), static_cast<size_t>(entry.type.bytes()));
    return Status::success();
  });
}

// By value: does it depend on random numbers, which each library draws in its own way?
std::vector<bool> find_random(const Graph& graph) {
  std::vector<bool> is_random(graph.value_count(), false);
  for (const State& state : graph.states) is_random[index_of(state.value)] = state.role == StateRole::Counter;
  for (NodeId id : graph.order())
    for (ValueId operand : graph.node(id).operands)
      if (operand != ValueId::None && is_random[index_of(operand)])
        for (ValueId result : graph.node(id).results) is_random[index_of(result)] = true;
  return is_random;
}

// The model with every value of `names` as an output; in place of its own path where its weights lie beside it.
Result<std::string> write_with_outputs(const Model& model, const llvm::StringSet<>& names, const std::string& folder) {
  for (const onnx::TensorProto& weight : model.proto().graph().initializer())
    if (is_external(weight)) return model.path().str();
  onnx::ModelProto proto = model.proto();
  llvm::StringSet<> known;
  for (const onnx::ValueInfoProto& output : proto.graph().output()) known.insert(output.name());
  for (const onnx::NodeProto& node : model.proto().graph().node())
    for (const std::string& name : node.output())
      if (names.contains(name) && known.insert(name).second) proto.mutable_graph()->add_output()->set_name(name);
  const std::string path = folder + "/model.onnx";
  if (Status s = write_output_file(
          path, [&](llvm::raw_ostream& out) { return out << proto.SerializeAsString(), Status::success(); }))
    return s;
  return path;
}

Status run_python(const std::string& folder, llvm::ArrayRef<llvm::StringRef> arguments) {
  const auto python = llvm::sys::findProgramByName("python3");
  const std::string advice = "--against needs ONNX Runtime: a python3 in which `pip install onnxruntime` was done";
  if (!python) return system_error(advice);
  const std::string program = folder + "/run.py", said = folder + "/said";
  if (Status s = write_output_file(program, [&](llvm::raw_ostream& out) { return out << script, Status::success(); }))
    return s;
  std::vector<llvm::StringRef> words = {*python, program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const int code = llvm::sys::ExecuteAndWait(*python, words, /*Env=*/{},
                                             {llvm::StringRef(""), llvm::StringRef(said), llvm::StringRef(said)});
  if (code == no_onnxruntime) return system_error(advice);
  if (code == 0) return Status::success();
  Result<std::unique_ptr<llvm::MemoryBuffer>> text = read_file(said);
  if (!text) return text.takeError();
  const llvm::StringRef last = (*text)->getBuffer().rtrim().rsplit('\n').second;
  return model_error("ONNX Runtime refuses the model or its inputs: " +
                     (last.empty() ? (*text)->getBuffer().rtrim() : last));
}

// The float values of the graph that do not depend on random numbers, in its order; counts the others.
std::vector<std::string> comparable_values(const Graph& graph, size_t& random) {
  const std::vector<bool> is_random = find_random(graph);
  std::vector<std::string> names;
  for (NodeId id : graph.order())
    for (ValueId value : graph.node(id).results) {
      if (!is_float(graph.type(value).dtype)) continue;
      if (is_random[index_of(value)])
        ++random;
      else
        names.push_back(graph.value(value).name);
    }
  return names;
}

// The values of the model as it is imported, with its own weights.
Result<NamedTensors> imported_values(const Graph& graph, const std::string& model_path, const StepStart& start) {
  Result<Weights> weights = open_weights(model_path);
  if (!weights) return weights.takeError();
  StepStart own = start;
  own.load = weights->load;
  Result<NamedTensors> given = start_values(graph, own);
  if (!given) return given.takeError();
  return run_reference_values(graph, *given);
}

// Adds the values of `names` that both have.
Status compare_values(const std::string& path, llvm::ArrayRef<std::string> names, const NamedTensors& values,
                      RuntimeComparison& comparison) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  for (const std::string& name : names) {
    const TensorEntry* entry = file->find(name);
    if (!entry) continue;
    Tensor theirs(entry->type);
    if (Status s = file->read(*entry, theirs.view().data)) return s;
    const Tensor& ours = values.at(name);
    const double error = ours.type().shape == entry->type.shape ? largest_error(ours, theirs) : INFINITY;
    comparison.tensors.push_back({TensorDifference::Kind::Value, name, ours.type(), error, limit});
  }
  if (comparison.tensors.empty()) return model_error("ONNX Runtime gives no value that can be compared");
  return Status::success();
}

}  // namespace

Result<RuntimeComparison> compare_with_onnxruntime(const Plan& plan, const std::string& model_path,
                                                   const StepStart& start) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  ImportOptions options;
  options.dims.insert(plan.dims.begin(), plan.dims.end());
  options.training = false;
  Result<Graph> graph = import_model(*model, options);
  if (!graph) return in_context(model_path, graph.takeError());
  Result<NamedTensors> values = imported_values(*graph, model_path, start);
  if (!values) return values.takeError();
  RuntimeComparison comparison;
  const std::vector<std::string> names = comparable_values(*graph, comparison.random);
  llvm::StringSet<> wanted;
  for (const std::string& name : names) wanted.insert(name);

  llvm::SmallString<128> folder;
  if (std::error_code failure = llvm::sys::fs::createUniqueDirectory("plimsoll-onnxruntime", folder))
    return system_error(failure.message());
  const auto remove = llvm::make_scope_exit([&] { llvm::sys::fs::remove_directories(folder); });
  const std::string here = folder.str().str(), inputs = here + "/inputs", outputs = here + "/outputs";
  Result<std::string> path = write_with_outputs(*model, wanted, here);
  if (!path) return path.takeError();
  if (Status s = write_tensors(inputs, start.batches.front())) return s;
  if (Status s = run_python(here, {*path, inputs, outputs})) return s;
  Result<std::unique_ptr<llvm::MemoryBuffer>> version = read_file(outputs + ".version");
  if (!version) return version.takeError();
  comparison.version = (*version)->getBuffer().str();
  if (Status s = compare_values(outputs, names, *values, comparison)) return s;
  return comparison;
}

}  // namespace plimsoll
