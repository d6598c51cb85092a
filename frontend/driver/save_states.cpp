#include "frontend/driver/save_states.h"

#include "frontend/onnx/model.h"
#include "ir/output_file.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/Path.h"

#include <cstring>

namespace plimsoll {
namespace {

constexpr int64_t most_inline_bytes = int64_t{1} << 30;
constexpr int64_t external_alignment = 4096;  // so that readers can map the file

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

class OnnxWriter {
 public:
  OnnxWriter(Session& session, const Model& model, std::string path)
      : views_(weights_of(session)), model_(model), proto_(model.proto()), path_(std::move(path)) {}

  Status write() {
    int64_t bytes = 0;
    for (onnx::TensorProto& tensor : *proto_.mutable_graph()->mutable_initializer()) {
      Result<int64_t> size = fill(tensor);
      if (!size) return size.takeError();
      bytes += *size;
    }
    if (bytes > most_inline_bytes)
      if (Status s = move_out()) return s;
    return write_output_file(path_, [&](llvm::raw_ostream& out) -> Status {
      std::string text;
      if (!proto_.SerializeToString(&text))
        return system_error(path_ + ": the model is too large for one protobuf file");
      out << text;
      return Status::success();
    });
  }

 private:
  // Puts the initializer's present bytes inside the message; gives their number.
  Result<int64_t> fill(onnx::TensorProto& tensor) {
    auto trained = views_.find(tensor.name());
    if (trained == views_.end() && !is_external(tensor)) return static_cast<int64_t>(tensor.ByteSizeLong());
    onnx::TensorProto fresh;
    fresh.set_name(tensor.name());
    fresh.set_data_type(tensor.data_type());
    *fresh.mutable_dims() = tensor.dims();
    if (trained != views_.end()) {
      fresh.set_raw_data(trained->second.data, static_cast<size_t>(trained->second.type.bytes()));
    } else {
      Result<Tensor> kept = tensor_from_onnx(tensor, model_.data());
      if (!kept) return kept.takeError();
      fresh.set_raw_data(kept->data(), static_cast<size_t>(kept->type().bytes()));
    }
    tensor = std::move(fresh);
    return static_cast<int64_t>(tensor.raw_data().size());
  }

  // Weights to a file beside the model, which then only says where they are.
  Status move_out() {
    std::string data_path = path_ + ".data";
    std::string location = llvm::sys::path::filename(data_path).str();
    return write_output_file(data_path, [&](llvm::raw_ostream& out) {
      int64_t at = 0;
      for (onnx::TensorProto& tensor : *proto_.mutable_graph()->mutable_initializer()) {
        if (tensor.raw_data().size() < external_alignment) continue;
        out.write_zeros(
            static_cast<unsigned>((external_alignment - at % external_alignment) % external_alignment));
        at = (at + external_alignment - 1) / external_alignment * external_alignment;
        out << tensor.raw_data();
        auto bytes = static_cast<int64_t>(tensor.raw_data().size());
        tensor.clear_raw_data();
        tensor.set_data_location(onnx::TensorProto::EXTERNAL);
        set_entry(tensor, "location", location);
        set_entry(tensor, "offset", std::to_string(at));
        set_entry(tensor, "length", std::to_string(bytes));
        at += bytes;
      }
      return Status::success();
    });
  }

  static void set_entry(onnx::TensorProto& tensor, const char* key, const std::string& value) {
    onnx::StringStringEntryProto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }

  llvm::StringMap<TensorView> views_;
  const Model& model_;
  onnx::ModelProto proto_;
  std::string path_;
};

}  // namespace

Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights) {
  for (llvm::StringRef path : paths) {
    if (path.endswith(".safetensors")) continue;
    if (!path.endswith(".onnx"))
      return usage_error("--save " + path + ": weights are saved as .safetensors or .onnx");
    if (!weights.endswith(".onnx"))
      return usage_error("--save " + path +
                         ": the graph comes from the model; give it as --weights MODEL.onnx");
  }
  return Status::success();
}

Status save_states(Session& session, const std::string& path, const std::string& model_path) {
  if (llvm::StringRef(path).endswith(".safetensors")) return save_safetensors(session, path);
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  return OnnxWriter(session, *model, path).write();
}

}  // namespace plimsoll
