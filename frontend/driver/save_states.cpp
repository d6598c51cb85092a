#include "frontend/driver/save_states.h"

#include "frontend/onnx/save.h"
#include "ir/strings.h"
#include "runtime/data/safetensors.h"

#include <cstring>

namespace plimsoll {
namespace {

// States that have a weight of the model behind them, by that weight's name.
llvm::StringMap<TensorView> weights_of(Session& session) {
  llvm::StringMap<TensorView> views;
  for (const PlanState& state : session.plan().states)
    if (state.init.kind == StateInit::Kind::Weights)
      views[state.init.source] = session.executor().view(state.slot);
  return views;
}

Status save_safetensors(Session& session, const std::string& path) {
  llvm::StringMap<TensorView> views = weights_of(session);
  std::vector<TensorEntry> entries;
  for (const auto& view : views) entries.push_back({view.first().str(), view.second.type});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    std::memcpy(out, views[entry.name].data, static_cast<size_t>(entry.type.bytes()));
    return Status::success();
  });
}

Status save_onnx(Session& session, const std::string& path, const std::string& model_path) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  llvm::StringMap<TensorView> views = weights_of(session);
  return save_model(*model, path, [&](llvm::StringRef initializer) -> Result<std::optional<Tensor>> {
    auto view = views.find(initializer);
    if (view == views.end()) return std::nullopt;
    return Tensor(view->second.type, view->second.data);
  });
}

}  // namespace

Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights) {
  for (llvm::StringRef path : paths) {
    if (ends_with(path, ".safetensors")) continue;
    if (!ends_with(path, ".onnx"))
      return usage_error("--save " + path + ": weights are saved as .safetensors or .onnx");
    if (!ends_with(weights, ".onnx"))
      return usage_error("--save " + path +
                         ": the graph comes from the model; give it as --weights MODEL.onnx");
  }
  return Status::success();
}

Status save_states(Session& session, const std::string& path, const std::string& model_path) {
  if (ends_with(path, ".safetensors")) return save_safetensors(session, path);
  return save_onnx(session, path, model_path);
}

}  // namespace plimsoll
