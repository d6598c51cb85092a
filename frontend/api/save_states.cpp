#include "frontend/api/save_states.h"

#include "frontend/onnx/save.h"
#include "ir/support/strings.h"
#include "runtime/data/safetensors.h"

#include <cstring>

namespace plimsoll {
namespace {

// Maps the names of the model's weights to the slots of their states.
llvm::StringMap<SlotId> weights_of(const Plan& plan) {
  llvm::StringMap<SlotId> slots;
  for (const PlanState& state : plan.states)
    if (state.init.kind == StateInit::Kind::Weights) slots[state.init.source] = state.slot;
  return slots;
}

Status save_safetensors(Session& session, const std::string& path) {
  llvm::StringMap<SlotId> slots = weights_of(session.plan());
  std::vector<TensorEntry> entries;
  for (const auto& slot : slots) entries.push_back({slot.first().str(), session.plan().slots[slot.second].type});
  llvm::sort(entries, [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    return session.executor().read(slots[entry.name], [&](const TensorView& bytes) {
      std::memcpy(out, bytes.data, static_cast<size_t>(bytes.type.bytes()));
      return Status::success();
    });
  });
}

Status save_onnx(Session& session, const std::string& path, const std::string& model_path) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  llvm::StringMap<SlotId> slots = weights_of(session.plan());
  return save_model(*model, path, [&](llvm::StringRef initializer) -> Result<std::optional<Tensor>> {
    auto slot = slots.find(initializer);
    if (slot == slots.end()) return std::nullopt;
    std::optional<Tensor> weight;
    Status read = session.executor().read(slot->second, [&](const TensorView& bytes) {
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
  if (ends_with(path, ".safetensors")) return save_safetensors(session, path);
  return save_onnx(session, path, model_path);
}

}  // namespace plimsoll
