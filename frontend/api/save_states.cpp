#include "frontend/api/save_states.h"

#include "frontend/onnx/save.h"
#include "frontend/onnx/state_names.h"
#include "ir/support/strings.h"
#include "runtime/data/safetensors.h"

#include <cstring>

namespace plimsoll {
namespace {

// Maps the names of the model's weights to their states.
llvm::StringMap<const WholeState*> weights_of(const Session& session) {
  llvm::StringMap<const WholeState*> states;
  for (const WholeState& state : session.whole_states())
    if (state.init.kind == StateInit::Kind::Weights) states[state.init.source] = &state;
  return states;
}

// The names that PyTorch's model has beside those in the file; none where no model is at hand.
Result<StateNames> names_in_model(const std::string& model_path) {
  if (!ends_with(model_path, ".onnx")) return StateNames();
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  return find_state_names(model->proto().graph());
}

Status save_safetensors(Session& session, const std::string& path, const std::string& model_path) {
  llvm::StringMap<const WholeState*> states = weights_of(session);
  Result<StateNames> names = names_in_model(model_path);
  if (!names) return names.takeError();
  for (const auto& [name, source] : names->tied)
    if (auto state = states.find(source); state != states.end()) states[name] = state->second;
  std::vector<TensorEntry> entries;
  for (const auto& state : states) entries.push_back({state.first().str(), state.second->type});
  for (const std::string& counter : names->batch_counters) entries.push_back({counter, Type(DType::I64, {})});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  const int64_t batches = session.steps_done() * session.plan().training.accumulate;
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) -> Status {
    const auto state = states.find(entry.name);
    if (state == states.end()) {
      std::memcpy(out, &batches, sizeof batches);
      return Status::success();
    }
    return session.read_whole_state(*state->second, [&](const TensorView& bytes) {
      std::memcpy(out, bytes.data, static_cast<size_t>(bytes.type.bytes()));
      return Status::success();
    });
  });
}

Status save_onnx(Session& session, const std::string& path, const std::string& model_path) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  llvm::StringMap<const WholeState*> states = weights_of(session);
  return save_model(*model, path, [&](llvm::StringRef initializer) -> Result<std::optional<Tensor>> {
    auto state = states.find(initializer);
    if (state == states.end()) return std::nullopt;
    std::optional<Tensor> weight;
    Status read = session.read_whole_state(*state->second, [&](const TensorView& bytes) {
      weight.emplace(bytes.type, bytes.data);
      return Status::success();
    });
    if (read) return read;
    return weight;
  });
}

}  // namespace

Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights) {
  for (llvm::StringRef path : paths) {
    if (ends_with(path, ".safetensors")) continue;
    if (!ends_with(path, ".onnx"))
      return usage_error("--save " + path + ": weights are saved as .safetensors or .onnx");
    if (!ends_with(weights, ".onnx"))
      return usage_error("--save " + path + ": the graph comes from the model; give it as --weights MODEL.onnx");
  }
  return Status::success();
}

Status save_states(Session& session, const std::string& path, const std::string& model_path) {
  if (session.rank() != 0) return session.serve_pieces();
  Status saved = ends_with(path, ".safetensors") ? save_safetensors(session, path, model_path)
                                                 : save_onnx(session, path, model_path);
  return llvm::joinErrors(std::move(saved), session.end_serving());
}

}  // namespace plimsoll
