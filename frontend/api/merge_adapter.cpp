#include "frontend/api/merge_adapter.h"

#include "frontend/api/adapter_file.h"
#include "frontend/api/weights.h"
#include "frontend/onnx/open_dims.h"
#include "frontend/onnx/provenance.h"
#include "frontend/onnx/save.h"
#include "ir/support/output_file.h"
#include "ir/support/strings.h"
#include "passes/compile.h"
#include "passes/rewrite/quantised_weights.h"
#include "passes/train/adapter_targets.h"
#include "passes/train/exported_adapters.h"
#include "runtime/bad_result.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

using Kind = AdaptableLayer::Kind;

// scale * B A for a weight of `shape`, in its order of elements.
std::vector<double> change_of(const AdaptableLayer& layer, llvm::ArrayRef<int64_t> shape, const FileAdapter& adapter,
                              const Tensor& a, const Tensor& b) {
  const int64_t rank = adapter.rank, outputs = b.type().shape[0], inputs = a.type().elements() / rank;
  const bool by_inputs = layer.is_transposed || layer.kind == Kind::Embedding;  // the weight is [inputs, outputs]
  std::vector<double> change(static_cast<size_t>(element_count(shape)));
#pragma omp parallel for
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t i = 0; i < inputs; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r) sum += b.get(o * rank + r) * a.get(r * inputs + i);
      change[static_cast<size_t>(by_inputs ? i * outputs + o : o * inputs + i)] = adapter.scale * sum;
    }
  return change;
}

// DoRA: the rows of the merged weight get the magnitudes as their norms. Changes of the weight become those.
void give_norms(const AdaptableLayer& layer, const Tensor& weight, const Tensor& magnitude,
                std::vector<double>& change) {
  const int64_t outputs = magnitude.type().elements(), inputs = weight.type().elements() / outputs;
#pragma omp parallel for
  for (int64_t o = 0; o < outputs; ++o) {
    const auto at = [&](int64_t i) { return layer.is_transposed ? i * outputs + o : o * inputs + i; };
    double squares = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      const double adapted = weight.get(at(i)) + change[static_cast<size_t>(at(i))];
      squares += adapted * adapted;
    }
    const double factor = magnitude.get(o) / std::sqrt(squares);
    for (int64_t i = 0; i < inputs; ++i) {
      double& own = change[static_cast<size_t>(at(i))];
      own = factor * (weight.get(at(i)) + own) - weight.get(at(i));
    }
  }
}

class Merger {
 public:
  explicit Merger(const MergeRequest& request) : request_(request) {}

  Result<MergeResult> run() {
    if (!ends_with(request_.output, ".onnx") && !ends_with(request_.output, ".safetensors"))
      return usage_error("--output " + request_.output + ": merged weights are saved as .onnx or .safetensors");
    if (Status s = check_output_file(request_.output, {request_.model, request_.weights, request_.adapter})) return s;
    Result<Model> model = Model::read(request_.model);
    if (!model) return model.takeError();
    if (Status s = import(*model)) return s;
    if (Status s = open_files()) return s;
    Status saved = ends_with(request_.output, ".onnx") ? save_onnx(*model) : save_safetensors();
    if (saved) return saved;
    return result_;
  }

 private:
  // Sizes that the file leaves open say nothing about weights.
  Status import(const Model& model) {
    constexpr int64_t any_size = 8;
    ImportOptions options = request_.import;
    for (const OpenDim& dim : open_dims(model.proto().graph())) options.dims.emplace(dim.name, any_size);
    Result<Graph> graph = import_model(model, options);
    if (!graph) return in_context(request_.model, graph.takeError());
    const bool has_own = llvm::any_of(graph->states, [&](const State& state) { return is_from_export(*graph, state); });
    if (has_own)
      return model_error(request_.model + ": has adapters itself; merge them into the model that they were added to");
    PassManager passes;
    if (Status s = clean_graph(*graph, passes)) return s;
    graph_ = std::move(*graph);
    root_ = request_.root.value_or(wrapper_prefix(model.proto().graph()));
    layers_ = find_adaptable_layers(graph_, root_);
    return Status::success();
  }

  Status open_files() {
    std::vector<std::string> modules;
    for (const AdaptableLayer& layer : layers_) modules.push_back(layer.module);
    Result<AdapterFile> adapter = AdapterFile::open(request_.adapter, modules);
    if (!adapter) return adapter.takeError();
    adapter_.emplace(std::move(*adapter));
    Result<Weights> weights = open_weights(request_.weights.empty() ? request_.model : request_.weights);
    if (!weights) return weights.takeError();
    weights_ = std::move(*weights);
    for (const FileAdapter& each : adapter_->adapters())
      if (Status s = check_layer(each)) return s;
    for (const auto& [name, entry] : adapter_->whole()) {
      const State* state = graph_.find_state(graph_.find_value(root_ + name));
      if (!state || graph_.type(state->value).shape != entry.type.shape)
        return model_error(adapter_->path() + ": '" + name + "' is no weight of the model of type " +
                           to_string(entry.type));
      whole_[state->init.source] = &entry;
    }
    return Status::success();
  }

  Status check_layer(const FileAdapter& adapter) {
    const AdaptableLayer& layer =
        *llvm::find_if(layers_, [&](const AdaptableLayer& each) { return each.module == adapter.module; });
    const State& state = *graph_.find_state(layer.weight);
    if (parts_of_quantised_weights(graph_).count(layer.weight) > 0)
      return model_error(graph_.value(layer.weight).name + ", the weight of " + adapter.module +
                         ", is quantised in the model's file; adapters are merged into floats");
    const auto also = llvm::find_if(
        layers_, [&](const AdaptableLayer& each) { return each.weight == layer.weight && each.kind != layer.kind; });
    if (also != layers_.end())
      return model_error(adapter.module + " shares its weight " + graph_.value(layer.weight).name +
                         " with another layer, which would change with it");
    if (layer.kind == Kind::Conv && graph_.node(layer.nodes.front()).attrs.get_int("groups", 1) > 1)
      return model_error(adapter.module + " is a convolution with groups, and its adapter is none");
    const Shape& weight = graph_.type(layer.weight).shape;
    const bool by_inputs = layer.is_transposed || layer.kind == Kind::Embedding;
    const int64_t outputs = weight[by_inputs ? 1 : 0], inputs = element_count(weight) / std::max<int64_t>(outputs, 1);
    const Type &a = adapter.a.type, &b = adapter.b.type;
    if (a.elements() != adapter.rank * inputs || b.shape[0] != outputs || b.elements() != adapter.rank * outputs)
      return model_error(adapter_->path() + ": the matrices of " + adapter.module + " are " + to_string(a) + " and " +
                         to_string(b) + ", its weight is " + to_string(graph_.type(layer.weight)));
    if (adapter.magnitude && (layer.kind != Kind::Linear || adapter.magnitude->type.elements() != outputs))
      return model_error(adapter_->path() + ": the magnitudes of " + adapter.module + " are " +
                         to_string(adapter.magnitude->type) + ", those of a linear layer are " +
                         std::to_string(outputs));
    merged_[state.init.source] = {&layer, &adapter};
    return Status::success();
  }

  // The weight as it is saved; none where nothing changes it.
  Result<std::optional<Tensor>> new_weight(llvm::StringRef name) {
    const auto whole = whole_.find(name.str());
    const auto merged = merged_.find(name.str());
    if (whole == whole_.end() && merged == merged_.end() && request_.weights.empty()) return std::nullopt;
    const ValueId value = value_of(name);
    if (value == ValueId::None) return std::nullopt;
    Tensor weight(graph_.type(value));
    if (Status s = weights_.load(name, weight.view())) return s;
    if (whole != whole_.end()) {
      Result<Tensor> now = adapter_->read(*whole->second);
      if (!now) return now.takeError();
      for (int64_t i = 0; i < weight.type().elements(); ++i) weight.view().set(i, now->get(i));
      ++result_.whole;
    }
    if (merged != merged_.end())
      if (Status s = add(*merged->second.layer, *merged->second.adapter, weight)) return s;
    return weight;
  }

  Status add(const AdaptableLayer& layer, const FileAdapter& adapter, Tensor& weight) {
    Result<Tensor> a = adapter_->read(adapter.a), b = adapter_->read(adapter.b);
    if (!a) return llvm::consumeError(b.takeError()), a.takeError();
    if (!b) return b.takeError();
    std::vector<double> change = change_of(layer, weight.type().shape, adapter, *a, *b);
    if (adapter.magnitude) {
      Result<Tensor> magnitude = adapter_->read(*adapter.magnitude);
      if (!magnitude) return magnitude.takeError();
      give_norms(layer, weight, *magnitude, change);
    }
    for (int64_t i = 0; i < weight.type().elements(); ++i) {
      const double by = change[static_cast<size_t>(i)];
      weight.view().set(i, weight.get(i) + by);
      if (std::abs(by) > result_.largest_change) {
        result_.largest_change = std::abs(by);
        result_.most_changed = graph_.value(layer.weight).name;
      }
    }
    if (holds_nan(weight.view()) || holds_infinity(weight.view()))
      return model_error(adapter.module + ": the merged weight holds NaN or infinity");
    ++result_.modules;
    return Status::success();
  }

  ValueId value_of(llvm::StringRef source) const {
    for (const State& state : graph_.states)
      if (state.init.kind == StateInit::Kind::Weights && state.init.source == source) return state.value;
    return ValueId::None;
  }

  Status save_onnx(const Model& model) {
    return save_model(model, request_.output, [&](llvm::StringRef name) { return new_weight(name); });
  }

  Status save_safetensors() {
    std::vector<TensorEntry> entries;
    for (const State& state : graph_.states)
      if (state.init.kind == StateInit::Kind::Weights) entries.push_back({state.init.source, graph_.type(state.value)});
    llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    return write_safetensors(request_.output, entries, [&](const TensorEntry& entry, void* out) -> Status {
      Result<std::optional<Tensor>> weight = new_weight(entry.name);
      if (!weight) return weight.takeError();
      if (!*weight) return weights_.load(entry.name, {entry.type, out});
      std::memcpy(out, (*weight)->data(), static_cast<size_t>(entry.type.bytes()));
      return Status::success();
    });
  }

  struct Merged {
    const AdaptableLayer* layer;
    const FileAdapter* adapter;
  };

  const MergeRequest& request_;
  Graph graph_;
  std::string root_;
  std::vector<AdaptableLayer> layers_;
  std::optional<AdapterFile> adapter_;
  Weights weights_;
  std::map<std::string, Merged> merged_;             // by the initializer's name
  std::map<std::string, const TensorEntry*> whole_;  // likewise
  MergeResult result_;
};

}  // namespace

Result<MergeResult> merge_adapter(const MergeRequest& request) { return Merger(request).run(); }

}  // namespace plimsoll
