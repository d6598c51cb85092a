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

// By the names of the model's weights.
llvm::StringMap<Saved> weights_of(const Session& session, SavedWeights which, const std::optional<Weights>& first) {
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
    const std::optional<Type> stored = first ? first->type_of(state.init.source) : std::nullopt;
    if (stored && stored->shape == state.type.shape && is_float(stored->dtype) &&
        dtype_bytes(stored->dtype) > dtype_bytes(state.type.dtype)) {
      saved.type = *stored;
      saved.was_narrowed = !state.trained;
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

// The names that PyTorch's model has beside those in the file; none where no model is at hand.
Result<StateNames> names_in_model(const std::string& model_path) {
  if (!ends_with(model_path, ".onnx")) return StateNames();
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  return find_state_names(model->proto().graph());
}

Status save_safetensors(Session& session, const std::string& path, const std::string& model_path, SavedWeights which) {
  Result<std::optional<Weights>> first = open_first_weights(model_path);
  if (!first) return first.takeError();
  llvm::StringMap<Saved> states = weights_of(session, which, *first);
  Result<StateNames> names = names_in_model(model_path);
  if (!names) return names.takeError();
  for (const auto& [name, source] : names->tied)
    if (auto state = states.find(source); state != states.end()) {
      const Saved saved = state->second;
      states.try_emplace(name, saved);
    }
  std::vector<TensorEntry> entries;
  for (const auto& state : states) entries.push_back({state.first().str(), state.second.type});
  for (const std::string& counter : names->batch_counters) entries.push_back({counter, Type(DType::I64, {})});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  const int64_t batches = session.steps_done() * session.plan().training.accumulate;
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) -> Status {
    const auto state = states.find(entry.name);
    if (state == states.end()) {
      std::memcpy(out, &batches, sizeof batches);
      return Status::success();
    }
    return read_saved(session, state->second, *first, {entry.type, out});
  });
}

Status save_onnx(Session& session, const std::string& path, const std::string& model_path, SavedWeights which) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  Result<std::optional<Weights>> first = open_first_weights(model_path);
  if (!first) return first.takeError();
  const llvm::StringMap<Saved> weights = weights_of(session, which, *first);
  return save_model(*model, path, [&](llvm::StringRef initializer) -> Result<std::optional<Tensor>> {
    const auto weight = weights.find(initializer);
    if (weight == weights.end()) return std::nullopt;
    std::optional<Tensor> tensor(std::in_place, weight->second.type);
    if (Status failed = read_saved(session, weight->second, *first, tensor->view())) return failed;
    return tensor;
  });
}

}  // namespace

Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights,
                          llvm::ArrayRef<llvm::StringRef> inputs) {
  llvm::SmallVector<llvm::StringRef, 4> kept(inputs.begin(), inputs.end());
  kept.push_back(weights);
  const std::string beside = (weights + ".data").str();  // where a saved model has its large weights
  kept.push_back(beside);
  for (llvm::StringRef path : paths) {
    if (Status s = check_output_file(path, kept)) return in_context("--save", std::move(s));
    if (ends_with(path, ".onnx"))
      if (Status s = check_output_file((path + ".data").str(), kept)) return in_context("--save", std::move(s));
    if (ends_with(path, ".safetensors")) continue;
    if (!ends_with(path, ".onnx"))
      return usage_error("--save " + path + ": weights are saved as .safetensors or .onnx");
    if (!ends_with(weights, ".onnx"))
      return usage_error("--save " + path + ": the graph comes from the model; give it as --weights MODEL.onnx");
  }
  return Status::success();
}

Status save_states(Session& session, const std::string& path, const std::string& model_path, SavedWeights which) {
  if (session.rank() != 0) return session.serve_pieces();
  Status saved = ends_with(path, ".safetensors") ? save_safetensors(session, path, model_path, which)
                                                 : save_onnx(session, path, model_path, which);
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
