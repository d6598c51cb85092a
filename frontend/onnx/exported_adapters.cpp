#include "frontend/onnx/exported_adapters.h"

#include "frontend/onnx/exported_factors.h"
#include "frontend/onnx/scoped_graph.h"
#include "ir/adapter_names.h"

#include "llvm/ADT/STLExtras.h"

// An adapter is two layers one after the other, both with a small weight: B of A of x. They belong to the module that
// their scopes name ("layers.0.q_proj.lora_A.default"), or their initializers. TorchScript's scopes lack the names of
// dictionaries ("q_proj.default_1"); there both layers lie in a module that has a base_layer. DoRA has them twice: for
// its norms, both layers are applied to a unit matrix.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral base_layer = ".base_layer", saved_module = ".modules_to_save.",
                              magnitude_vector = ".lora_magnitude_vector";

using Stored = ScopedGraph::Stored;

bool is_matmul(const onnx::NodeProto& node) { return node.op_type() == "MatMul" || node.op_type() == "Gemm"; }

// "X" of "X.lora_A.default" and of "X.lora_A.default.weight".
llvm::StringRef module_of_matrix(llvm::StringRef path) {
  path.consume_back(".weight");
  for (llvm::StringRef name : {".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B."})
    if (const size_t at = path.find(name);
        at != llvm::StringRef::npos && !path.drop_front(at + name.size()).contains('.'))
      return path.take_front(at);
  return "";
}

// "default" of "X.lora_A.default".
llvm::StringRef adapter_of_matrix(llvm::StringRef path) {
  path.consume_back(".weight");
  return module_of_matrix(path).empty() ? "" : path.rsplit('.').second;
}

class Finder {
 public:
  explicit Finder(const onnx::GraphProto& proto) : graph_(proto) {
    for (const auto& [name, tensor] : graph_.initializers()) {
      const auto [before, behind] = llvm::StringRef(name).split(adapter_prefix);
      if (!behind.empty()) found_.prefix = before.str();
    }
    for (const onnx::NodeProto& node : proto.node())
      if (llvm::StringRef module = graph_.scope(node); module.consume_back(base_layer)) {
        adapted_.insert(module);
        const onnx::NodeProto*& layer = frozen_[module_path(module)];
        if (!layer && is_matmul(node) && graph_.stored(node, 1).tensor) layer = &node;
      }
  }

  Result<ExportedAdapters> find() {
    if (adapted_.empty()) return std::move(found_);
    for (const onnx::NodeProto& node : graph_.proto().node())
      if (Status s = visit(node)) return s;
    if (Status s = refuse_other_magnitudes()) return s;
    if (found_.empty()) return std::move(found_);
    if (names_.size() > 1)
      return model_error("holds adapters of the names " + *names_.begin() + " and " + *names_.rbegin() +
                         "; export it with one of them active");
    find_saved_modules();
    find_unread_nodes(graph_, found_);
    return std::move(found_);
  }

 private:
  // Magnitudes are named in initializers, torch.export's list or scopes.
  Status refuse_other_magnitudes() const {
    const auto check = [&](llvm::StringRef name) -> Status {
      const size_t at = name.find(magnitude_vector);
      const std::string module = module_path(name.take_front(at));
      if (at == llvm::StringRef::npos || found_.factors.count(module) > 0) return Status::success();
      return model_error(module +
                         " has magnitudes (DoRA) that are not recognised; export the model without adapters, "
                         "and compile it with --dora and its adapter");
    };
    for (const auto& [name, tensor] : graph_.initializers())
      if (Status s = check(name)) return s;
    for (const std::string& name : ExportSignature::read(graph_.proto()).parameters())
      if (Status s = check(name)) return s;
    for (const onnx::NodeProto& node : graph_.proto().node()) {
      if (Status s = check(graph_.scope(node))) return s;
      if (node.op_type() != "Identity") continue;  // of a magnitude that is equal to another
      for (const std::string& output : node.output())
        if (Status s = check(output)) return s;
    }
    return Status::success();
  }

  // Which module a layer with that weight is a half of an adapter of; empty: of none.
  std::string module_of(const onnx::NodeProto& node, const onnx::TensorProto& weight) {
    llvm::StringRef scope = graph_.scope(node);
    if (scope.contains(base_layer)) return "";
    for (llvm::StringRef path : {scope, llvm::StringRef(weight.name())})
      if (const llvm::StringRef module = module_of_matrix(path); !module.empty()) {
        names_.insert(adapter_of_matrix(path).str());
        return module_path(module);
      }
    for (; !scope.empty(); scope = scope.contains('.') ? scope.rsplit('.').first : "")
      if (adapted_.contains(scope)) return module_path(scope);
    return "";
  }

  // The path in the user's model. TorchScript's scopes have "model" of PEFT's two attributes base_model.model.
  std::string module_path(llvm::StringRef scope) const {
    if (const size_t at = scope.find(adapter_prefix); at != llvm::StringRef::npos)
      return scope.drop_front(at + adapter_prefix.size()).str();
    scope.consume_front(found_.prefix);
    scope.consume_front("model.");
    return scope.str();
  }

  // Are the two layers applied to a unit matrix, perhaps a constant, for the transpose of B A?
  bool is_for_norms(const onnx::NodeProto& first, const onnx::NodeProto& second) const {
    const onnx::NodeProto* reader = graph_.only_reader(second.output(0));
    if (!reader || reader->op_type() != "Transpose") return false;
    const onnx::NodeProto* maker = graph_.producer_past(first.input(0), {"Cast", "Identity"});
    if (!maker) return graph_.stored(first.input(0)).tensor != nullptr;
    return maker->op_type() == "EyeLike" || maker->op_type() == "Equal" || maker->op_type() == "Constant";
  }

  Status visit(const onnx::NodeProto& second) {
    const auto is_layer = [](const onnx::NodeProto& node) { return is_matmul(node) || node.op_type() == "Conv"; };
    if (!is_layer(second) || second.input_size() < 2 || second.output_size() != 1) return Status::success();
    const onnx::NodeProto* first = graph_.producer_past(second.input(0), {"Cast"});
    if (!first) return Status::success();
    const bool looks_up = first->op_type() == "Gather";
    if (!looks_up && !is_layer(*first)) return Status::success();
    const Stored a = graph_.stored(*first, looks_up ? 0 : 1), b = graph_.stored(second, 1);
    if (!a.tensor || !b.tensor) return Status::success();
    if (!looks_up && is_for_norms(*first, second)) return Status::success();
    const std::string module = module_of(*first, *a.tensor);
    if (module.empty() || module != module_of(second, *b.tensor)) return Status::success();
    if (Status s = add(*first, looks_up ? 0 : 1, a, module, looks_up ? AdapterMatrix::EmbeddingA : AdapterMatrix::A))
      return s;
    if (Status s = add(second, 1, b, module, looks_up ? AdapterMatrix::EmbeddingB : AdapterMatrix::B)) return s;
    const llvm::StringRef kind = looks_up ? "an embedding" : second.op_type() == "Conv" ? "a convolution" : "";
    return find_exported_factor(graph_, {module, &second, frozen_[module], kind}, found_);
  }

  Status add(const onnx::NodeProto& node, int input, const Stored& read, const std::string& module,
             AdapterMatrix matrix) {
    return add_parameter(node, input, read, adapter_weight_name(module, matrix));
  }

  Status add_parameter(const onnx::NodeProto& node, int input, const Stored& read, const std::string& key) {
    Result<Type> type = stored_type_from_onnx(*read.tensor);
    if (!type) return type.takeError();
    if (type->rank() < 2) return model_error(key + " is " + to_string(*type) + ", which is no matrix");
    const bool transposed = read.transposed != reads_transpose(node);
    if (transposed) std::swap(type->shape[0], type->shape[1]);
    ExportedParameter parameter{key, read.tensor->name(), *type, transposed};
    const auto [known, is_new] = found_.parameters.try_emplace(key, parameter);
    if (!is_new && (known->second.initializer != parameter.initializer || known->second.type != parameter.type))
      return model_error(key + " is both " + known->second.initializer + " " + to_string(known->second.type) + " and " +
                         parameter.initializer + " " + to_string(parameter.type));
    found_.operands[{&node, input}] = key;
    return Status::success();
  }

  // Modules that are trained whole: by the names of their parameters, or, where the exporter has renamed a matrix, by
  // the scope of the layer that reads it.
  void find_saved_modules() {
    for (const auto& [name, tensor] : graph_.initializers()) {
      const auto [module, rest] = llvm::StringRef(name).split(saved_module);
      Result<Type> type = stored_type_from_onnx(*tensor);
      if (!type) {
        llvm::consumeError(type.takeError());
        continue;
      }
      if (rest.empty() || !is_float(type->dtype)) continue;
      const std::string key = (adapter_prefix + module_path(module) + "." + rest.split('.').second).str();
      found_.parameters[key] = {key, name, *type, false};
      found_.initializers[name] = key;
    }
    for (const onnx::NodeProto& node : graph_.proto().node()) {
      const auto [module, rest] = graph_.scope(node).split(saved_module);
      const Stored weight = is_matmul(node) ? graph_.stored(node, 1) : Stored();
      if (rest.empty() || !weight.tensor || found_.initializers.count(weight.tensor->name()) > 0) continue;
      const std::string inner = rest.contains('.') ? rest.split('.').second.str() + "." : "";
      const std::string key = (adapter_prefix + module_path(module) + "." + inner + "weight").str();
      if (Status s = add_parameter(node, 1, weight, key)) llvm::consumeError(std::move(s));
    }
  }

  const ScopedGraph graph_;
  ExportedAdapters found_;
  llvm::StringSet<> adapted_;                             // scopes of modules that have a base_layer
  std::map<std::string, const onnx::NodeProto*> frozen_;  // by module: the layer of a stored matrix in it, or null
  std::set<std::string> names_;
};

}  // namespace

bool reads_transpose(const onnx::NodeProto& node) {
  if (node.op_type() == "MatMul") return true;
  return node.op_type() == "Gemm" && llvm::none_of(node.attribute(), [](const onnx::AttributeProto& attribute) {
           return attribute.name() == "transB" && attribute.i() != 0;
         });
}

// Most models have no adapters, and scopes of all nodes take longer to read than to search.
static bool may_have_adapters(const onnx::GraphProto& graph) {
  constexpr llvm::StringLiteral name = "base_layer";
  return llvm::any_of(graph.node(), [&](const onnx::NodeProto& node) {
    return llvm::StringRef(node.name()).contains(name) ||
           llvm::any_of(node.metadata_props(), [&](const onnx::StringStringEntryProto& entry) {
             return entry.key() == "pkg.torch.onnx.name_scopes" && llvm::StringRef(entry.value()).contains(name);
           });
  });
}

Result<ExportedAdapters> find_exported_adapters(const onnx::GraphProto& graph) {
  if (!may_have_adapters(graph)) return ExportedAdapters();
  return Finder(graph).find();
}

}  // namespace plimsoll
