#include "frontend/api/save_states.h"

#include "frontend/onnx/save.h"
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

Status save_safetensors(Session& session, const std::string& path) {
  llvm::StringMap<const WholeState*> states = weights_of(session);
  std::vector<TensorEntry> entries;
  for (const auto& state : states) entries.push_back({state.first().str(), state.second->type});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    return session.read_whole_state(*states[entry.name], [&](const TensorView& bytes) {
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
  Status saved =
      ends_with(path, ".safetensors") ? save_safetensors(session, path) : save_onnx(session, path, model_path);
  return llvm::joinErrors(std::move(saved), session.end_serving());
}

}  // namespace plimsoll
