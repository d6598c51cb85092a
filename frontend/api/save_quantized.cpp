#include "frontend/api/save_quantized.h"

#include "ir/quantized_numbers.h"
#include "ir/support/output_file.h"
#include "ir/support/strings.h"
#include "runtime/bad_result.h"
#include "runtime/data/safetensors.h"
#include "runtime/packed_weights.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"

#include <cstring>
#include <map>

namespace plimsoll {
namespace {

// One tensor of the file: a state as it is stored, or bytes that are made here.
struct SavedTensor {
  const WholeState* state = nullptr;
  Type type;
  std::string bytes;  // where there is no state
};

class QuantizedFile {
 public:
  explicit QuantizedFile(Session& session) : session_(session) {
    for (const WholeState& state : session.whole_states())
      if (state.init.kind == StateInit::Kind::Weights) states_[state.init.source] = &state;
  }

  Status write(const std::string& path) {
    std::map<std::string, SavedTensor> tensors;
    for (const auto& [source, state] : states_) tensors[source] = {state, state->type, ""};
    for (const PackedWeight& weight : packed_weights_of(session_.plan()))
      if (Status s = add_settings(weight, tensors)) return s;
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type});
    const auto read = [&](const TensorEntry& entry, void* out) -> Status {
      const SavedTensor& tensor = tensors.at(entry.name);
      if (tensor.state) return read_state(*tensor.state, {entry.type, out});
      std::memcpy(out, tensor.bytes.data(), tensor.bytes.size());
      return Status::success();
    };
    return write_safetensors(path, entries, read, {{"format", "pt"}});
  }

 private:
  static SavedTensor floats(llvm::ArrayRef<float> values) {
    SavedTensor made;
    made.type = Type(DType::F32, {static_cast<int64_t>(values.size())});
    made.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return made;
  }

  // Weights that a bad step has spoilt replace no file.
  Status read_state(const WholeState& state, const TensorView& to) {
    if (Status s = session_.copy_whole_state(state, to)) return s;
    if (state.trained && (holds_nan(to) || holds_infinity(to)))
      return model_error("the weights are not saved, because '" + state.name + "' holds NaN or infinity");
    return Status::success();
  }

  // What bitsandbytes has of a weight beside its codes and scales. The offset of the scales stands in the settings.
  Status add_settings(const PackedWeight& weight, std::map<std::string, SavedTensor>& tensors) {
    llvm::json::Object settings{{"quant_type", "nf4"},
                                {"blocksize", weight.block},
                                {"dtype", torch_name(weight.dtype)},
                                {"shape", llvm::json::Array{weight.shape[0], weight.shape[1]}}};
    tensors[weight.source + ".quant_map"] = floats(nf4_values());
    if (!weight.offset.empty()) {
      Tensor offset(Type(DType::F32, {1}));
      if (Status s = session_.copy_whole_state(*states_.at(weight.offset), offset.view())) return s;
      tensors.erase(weight.offset);
      tensors[weight.source + ".nested_quant_map"] = floats(dynamic_map(true));
      settings["nested_blocksize"] = scales_per_block;
      settings["nested_dtype"] = "float32";
      settings["nested_offset"] = offset.get(0);
    }
    SavedTensor& text = tensors[weight.source + ".quant_state.bitsandbytes__nf4"];
    llvm::raw_string_ostream(text.bytes) << llvm::json::Value(std::move(settings));
    text.type = Type(DType::U8, {static_cast<int64_t>(text.bytes.size())});
    return Status::success();
  }

  static llvm::StringRef torch_name(DType dtype) {
    return dtype == DType::BF16 ? "bfloat16" : dtype == DType::F16 ? "float16" : "float32";
  }

  Session& session_;
  std::map<std::string, const WholeState*> states_;  // by the model's name
};

}  // namespace

Status check_quantized_target(const std::string& path, const Plan& plan, llvm::ArrayRef<llvm::StringRef> inputs) {
  const std::string option = "--save-quantized " + path;
  if (!ends_with(path, ".safetensors")) return usage_error(option + ": quantised weights are saved as .safetensors");
  if (Status s = check_output_file(path, inputs)) return in_context("--save-quantized", std::move(s));
  bool has_any = false;
  for (const Plan* stage : plan.stages())
    for (const PackedWeight& weight : packed_weights_of(*stage)) {
      has_any = true;
      if (weight.format != "nf4")
        return usage_error(option + ": '" + weight.source + "' is in " + weight.format +
                           ", and bitsandbytes' files have NF4; compile with --quantize nf4 or nf4-single");
    }
  return has_any ? Status::success()
                 : usage_error(option + ": the plan has no quantised weights; compile it with --quantize nf4");
}

Status save_quantized(Session& session, const std::string& path) {
  if (session.rank() != 0) return session.serve_pieces();
  Status saved = QuantizedFile(session).write(path);
  return llvm::joinErrors(std::move(saved), session.end_serving());
}

}  // namespace plimsoll
