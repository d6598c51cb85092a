#include "frontend/api/save_states.h"

#include "frontend/api/weights.h"
#include "frontend/onnx/save.h"
#include "frontend/onnx/state_names.h"
#include "ir/support/output_file.h"
#include "ir/support/strings.h"
#include "passes/train/optimizer_update.h"
#include "runtime/bad_result.h"
#include "runtime/data/safetensors.h"
#include "runtime/packed_weights.h"

#include "llvm/ADT/StringSet.h"

#include "llvm/Support/FileSystem.h"

#include <cstring>

namespace plimsoll {
namespace {

// What is saved of a weight: the numbers of a state, in the weight's type.
struct Saved {
  const WholeState* state;
  Type type;
  bool was_narrowed = false;  // the plan has the frozen weight in fewer bytes than the file that it was loaded from
  bool is_packed = false;     // the plan has its codes
};

// The file that the weights came from; none where there is none any more.
Result<std::optional<Weights>> open_first_weights(const std::string& path) {
  if (!llvm::sys::fs::exists(path)) return std::nullopt;
  Result<Weights> weights = open_weights(path);
  if (!weights) return weights.takeError();
  return std::move(*weights);
}

// What is at hand of the sources.
struct Sources {
  std::optional<Model> model;
  std::optional<Weights> declared;  // which types the model's weights have
  std::optional<Weights> first;     // none where the file is gone

  std::optional<Type> type_of(llvm::StringRef weight) const {
    if (declared)
      if (const std::optional<Type> type = declared->type_of(weight)) return type;
    return first_type_of(weight);
  }
  std::optional<Type> first_type_of(llvm::StringRef weight) const {
    return first ? first->type_of(weight) : std::nullopt;
  }
};

Result<Sources> open_sources(const SaveSources& paths) {
  Sources sources;
  Result<std::optional<Weights>> first = open_first_weights(paths.first);
  if (!first) return first.takeError();
  sources.first = std::move(*first);
  if (paths.model.empty()) return sources;
  Result<Model> model = Model::read(paths.model);
  if (!model) return model.takeError();
  Result<Weights> declared = open_weights(paths.model);
  if (!declared) return declared.takeError();
  sources.model = std::move(*model), sources.declared = std::move(*declared);
  return sources;
}

// By the names of the model's weights.
llvm::StringMap<Saved> weights_of(const Session& session, SavedWeights which, const Sources& sources) {
  llvm::StringMap<const WholeState*> by_name;
  for (const WholeState& state : session.whole_states()) by_name[state.name] = &state;
  llvm::StringMap<Saved> weights;
  llvm::StringSet<> codes, scales;
  for (const PackedWeight& packed : packed_weights_of(session.plan())) {
    codes.insert(packed.source);
    for (const std::string& name : {packed.scales, packed.scale_scales, packed.offset}) scales.insert(name);
  }
  for (const WholeState& state : session.whole_states()) {
    if (state.init.kind != StateInit::Kind::Weights || scales.contains(state.init.source)) continue;
    const WholeState* mean = which == SavedWeights::Mean ? by_name.lookup(state.name + ema_suffix.str()) : nullptr;
    Saved saved{mean ? mean : &state, state.type};
    const std::optional<Type> stored = sources.type_of(state.init.source);
    if (stored && stored->shape == state.type.shape && is_float(stored->dtype) &&
        dtype_bytes(stored->dtype) > dtype_bytes(state.type.dtype)) {
      saved.type = *stored;
      saved.was_narrowed = !state.trained && sources.first_type_of(state.init.source) == stored;
    }
    if (codes.contains(state.init.source)) {
      saved.is_packed = true;
      if (stored) saved.type = *stored;
    }
    weights.try_emplace(state.init.source, std::move(saved));
  }
  return weights;
}

// Is every number of `narrow` what the one of `wide` rounds to?
Result<bool> rounds_to(const TensorView& wide, const TensorView& narrow) {
  Tensor rounded(narrow.type);
  const int64_t size = dtype_bytes(wide.type.dtype);
  if (Status s = read_converted(wide.type.dtype, 0, rounded.view(), [&](int64_t first, const TensorView& part) {
        std::memcpy(part.data, wide.as<char>() + first * size, static_cast<size_t>(part.type.bytes()));
        return Status::success();
      }))
    return s;
  return std::memcmp(rounded.data(), narrow.data, static_cast<size_t>(narrow.type.bytes())) == 0;
}

// Weights that a bad step has spoilt replace no file. Of a frozen weight that was narrowed as it was loaded, the file
// has all digits.
Status read_saved(Session& session, const Saved& saved, const std::optional<Weights>& first, const TensorView& into) {
  if (saved.is_packed) {
    if (first && first->type_of(saved.state->init.source)) return first->load(saved.state->init.source, into);
    return model_error("'" + saved.state->init.source +
                       "' is quantised, and the file that it came from, which has its numbers, is not at hand");
  }
  return session.read_whole_state(*saved.state, [&](const TensorView& bytes) -> Status {
    if (saved.was_narrowed) {
      if (Status s = first->load(saved.state->init.source, into)) return s;
      Result<bool> is_unchanged = rounds_to(into, bytes);
      if (!is_unchanged || *is_unchanged) return is_unchanged.takeError();
    }
    if (saved.state->role != StateRole::Buffer && (holds_nan(bytes) || holds_infinity(bytes)))
      return model_error("the weights are not saved, because '" + saved.state->name + "' holds NaN or infinity");
    if (bytes.type == into.type)
      std::memcpy(into.data, bytes.data, static_cast<size_t>(bytes.type.bytes()));
    else
      for (int64_t i = 0; i < into.elements(); ++i) into.set(i, bytes.get(i));
    return Status::success();
  });
}

Status save_safetensors(Session& session, const std::string& path, const Sources& sources, SavedWeights which) {
  llvm::StringMap<Saved> states = weights_of(session, which, sources);
  // The names that PyTorch's model has beside those in the file.
  const StateNames names = sources.model ? find_state_names(sources.model->proto().graph()) : StateNames();
  for (const auto& [name, source] : names.tied)
    if (auto state = states.find(source); state != states.end()) {
      const Saved saved = state->second;
      states.try_emplace(name, saved);
    }
  std::vector<TensorEntry> entries;
  for (const auto& state : states) entries.push_back({state.first().str(), state.second.type});
  for (const std::string& counter : names.batch_counters) entries.push_back({counter, Type(DType::I64, {})});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  const int64_t batches = session.steps_done() * session.plan().training.accumulate;
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) -> Status {
    const auto state = states.find(entry.name);
    if (state == states.end()) {
      std::memcpy(out, &batches, sizeof batches);
      return Status::success();
    }
    return read_saved(session, state->second, sources.first, {entry.type, out});
  });
}

Status save_onnx(Session& session, const std::string& path, const Sources& sources, SavedWeights which) {
  const llvm::StringMap<Saved> weights = weights_of(session, which, sources);
  return save_model(*sources.model, path, [&](llvm::StringRef initializer) -> Result<std::optional<Tensor>> {
    const auto weight = weights.find(initializer);
    if (weight == weights.end()) return std::nullopt;
    std::optional<Tensor> tensor(std::in_place, weight->second.type);
    if (Status failed = read_saved(session, weight->second, sources.first, tensor->view())) return failed;
    return tensor;
  });
}

// The model must have what the plan trains, and what the plan does not have.
Status check_save_model(llvm::ArrayRef<std::string> paths, const std::string& model,
                        llvm::ArrayRef<WholeState> states) {
  Result<Model> file = Model::read(model);
  if (!file) return file.takeError();
  Result<WeightSource> weights = WeightSource::open(*file);
  if (!weights) return weights.takeError();
  Result<Weights> named = open_weights(model);  // adapters that the file holds too
  if (!named) return named.takeError();
  llvm::StringSet<> planned;
  for (const WholeState& state : states) {
    if (state.init.kind != StateInit::Kind::Weights) continue;
    planned.insert(state.init.source);
    const std::optional<Type> type = named->type_of(state.init.source);
    if (!state.trained || (type && type->shape == state.type.shape)) continue;
    return model_error("--save: the plan trains '" + state.init.source + "' (" + to_string(state.type) + "), " + model +
                       (type ? " has it as " + to_string(*type) : std::string(" has no such weight")) +
                       "; give the model that the plan was compiled from as --model");
  }
  const auto* as_onnx = llvm::find_if(paths, [](const std::string& path) { return ends_with(path, ".onnx"); });
  for (const Weight& weight : weights->weights())
    if (as_onnx != paths.end() && weight.place == Weight::Place::Absent && !planned.contains(weight.name))
      return model_error("--save " + *as_onnx + ": " + model + " lacks the file with the values of '" + weight.name +
                         "', and the plan does not have them; save as .safetensors");
  return Status::success();
}

}  // namespace

Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef model,
                          llvm::ArrayRef<llvm::StringRef> inputs) {
  llvm::SmallVector<llvm::StringRef, 4> kept(inputs.begin(), inputs.end());
  kept.push_back(model);
  const std::string beside = (model + ".data").str();  // where a saved model has its large weights
  kept.push_back(beside);
  for (llvm::StringRef path : paths) {
    if (Status s = check_output_file(path, kept)) return in_context("--save", std::move(s));
    if (ends_with(path, ".onnx"))
      if (Status s = check_output_file((path + ".data").str(), kept)) return in_context("--save", std::move(s));
    if (ends_with(path, ".safetensors")) continue;
    if (!ends_with(path, ".onnx"))
      return usage_error("--save " + path + ": weights are saved as .safetensors or .onnx");
    if (!ends_with(model, ".onnx"))
      return usage_error("--save " + path + ": the graph comes from the model; give it as --model MODEL.onnx");
  }
  return Status::success();
}

Status check_save_sources(llvm::ArrayRef<std::string> paths, const SaveSources& sources, const Plan& plan) {
  if (paths.empty()) return Status::success();
  if (sources.first.empty())
    for (const Plan* stage : plan.stages())
      if (const std::vector<PackedWeight> packed = packed_weights_of(*stage); !packed.empty())
        return usage_error("--save " + paths.front() + ": the plan has '" + packed.front().source +
                           "' quantised, and its numbers are those of the file that it is read from; give it as "
                           "--weights, or compile without --quantize");
  return sources.model.empty() ? Status::success() : check_save_model(paths, sources.model, whole_states_of(plan));
}

Status save_states(Session& session, const std::string& path, const SaveSources& sources, SavedWeights which) {
  if (session.rank() != 0) return session.serve_pieces();
  const auto save = [&]() -> Status {
    Result<Sources> opened = open_sources(sources);
    if (!opened) return opened.takeError();
    return ends_with(path, ".safetensors") ? save_safetensors(session, path, *opened, which)
                                           : save_onnx(session, path, *opened, which);
  };
  Status saved = save();
  return llvm::joinErrors(std::move(saved), session.end_serving());
}

Result<int64_t> min_weight_bytes(llvm::StringRef model_path) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  Result<WeightSource> source = WeightSource::open(*model);
  if (!source) return source.takeError();
  constexpr int64_t min_bytes_per_element = 2;
  int64_t bytes = 0;
  for (const Weight& weight : source->weights())
    if (is_float(weight.type.dtype))
      bytes += std::min(weight.type.bytes(), min_bytes_per_element * weight.type.elements());
  return bytes;
}

bool has_mean_weights(const Session& session) {
  return llvm::any_of(session.whole_states(),
                      [](const WholeState& state) { return ends_with(state.name, ema_suffix); });
}

}  // namespace plimsoll
