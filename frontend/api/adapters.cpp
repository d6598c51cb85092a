#include "frontend/api/adapters.h"

#include "ir/support/output_file.h"
#include "ir/support/strings.h"
#include "runtime/bad_result.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace plimsoll {
namespace {

const WholeState* find_state(Session& session, llvm::StringRef name) {
  const llvm::ArrayRef<WholeState> states = session.whole_states();
  const auto* found = llvm::find_if(states, [&](const WholeState& state) { return state.name == name; });
  return found == states.end() ? nullptr : found;
}

// [rows, columns] to [columns, rows].
void transpose_f32(const float* from, float* to, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
}

// One tensor of a file: which state, under which key.
struct SavedTensor {
  TensorEntry entry;        // f32
  const WholeState* state;  // null: the number `value`
  bool transposed = false;  // the file has the transpose of the state
  float value = 0;
};

// The name of a parameter that is trained whole, behind PEFT's prefix.
llvm::StringRef whole_name(const WholeState& state, const PlannedAdapters& adapters) {
  llvm::StringRef name = state.init.source;
  if (!name.consume_front(adapters.root)) name.consume_front(adapter_prefix);
  return name;
}

class AdapterWriter {
 public:
  AdapterWriter(Session& session, const PlannedAdapters& adapters, AdapterFormat format)
      : session_(session), adapters_(adapters), format_(format) {}

  Status write(const std::string& path) {
    if (Status s = collect()) return s;
    const bool is_file = ends_with(path, ".safetensors");
    if (!is_file)
      if (std::error_code failure = llvm::sys::fs::create_directories(path))
        return system_error(path + ": " + failure.message());
    constexpr llvm::StringLiteral names[] = {peft_weights_file, diffusers_weights_file, kohya_weights_file};
    const std::string file = is_file ? path : path + "/" + names[static_cast<size_t>(format_)].str();
    std::vector<TensorEntry> entries;
    for (const SavedTensor& tensor : tensors_) entries.push_back(tensor.entry);
    size_t next = 0;
    const auto read = [&](const TensorEntry& entry, void* out) { return read_tensor(tensors_[next++], out); };
    if (Status s = write_safetensors(file, entries, read, metadata())) return s;
    if (format_ != AdapterFormat::Peft) return Status::success();
    return write_output_file(path + "/" + peft_config_file.str(), [&](llvm::raw_ostream& out) {
      out << llvm::formatv("{0:2}\n", llvm::json::Value(settings("")));
      return Status::success();
    });
  }

 private:
  Status collect() {
    for (const PlannedAdapter& adapter : adapters_.modules) {
      add(adapter, adapter.a, adapter.of_embedding ? AdapterMatrix::EmbeddingA : AdapterMatrix::A);
      add(adapter, adapter.b, adapter.of_embedding ? AdapterMatrix::EmbeddingB : AdapterMatrix::B);
      if (!adapter.magnitude.empty()) {
        if (format_ != AdapterFormat::Peft)
          return usage_error("the magnitudes of " + adapter.module + " (DoRA) have a name in PEFT's format alone");
        add(adapter, adapter.magnitude, AdapterMatrix::Magnitude);
      }
      if (format_ == AdapterFormat::Kohya)
        tensors_.push_back({{flat(adapter.module) + ".alpha", Type(DType::F32, {}), 0},
                            nullptr,
                            false,
                            static_cast<float>(adapters_.scale(adapter) * static_cast<double>(adapter.rank))});
      if (adapter.of_embedding && format_ != AdapterFormat::Peft)
        return usage_error("the adapter of the embedding " + adapter.module + " has a name in PEFT's format alone");
    }
    for (const WholeState& state : session_.whole_states()) {
      if (!state.trained || state.init.kind != StateInit::Kind::Weights || parse_adapter_weight(state.init.source))
        continue;
      if (format_ != AdapterFormat::Peft)
        return usage_error("'" + state.name +
                           "' is trained beside the adapters, and only PEFT's format has room for it");
      const llvm::StringRef name = whole_name(state, adapters_);
      tensors_.push_back({{(adapter_prefix + name).str(), Type(DType::F32, state.type.shape), 0}, &state});
      whole_modules_.insert(name.rsplit('.').first.str());
    }
    llvm::sort(tensors_, [](const SavedTensor& a, const SavedTensor& b) { return a.entry.name < b.entry.name; });
    return Status::success();
  }

  void add(const PlannedAdapter& adapter, const std::string& state, AdapterMatrix matrix) {
    SavedTensor tensor{{key_of(adapter.module, matrix), Type(), 0}, find_state(session_, state)};
    Shape shape = tensor.state->type.shape;
    if (matrix == AdapterMatrix::EmbeddingA) {
      tensor.transposed = true;
      std::swap(shape[0], shape[1]);
    }
    tensor.entry.type = Type(DType::F32, shape);
    tensors_.push_back(std::move(tensor));
  }

  std::string key_of(const std::string& module, AdapterMatrix matrix) const {
    const bool is_first = matrix == AdapterMatrix::A;
    if (format_ == AdapterFormat::Peft) return adapter_weight_name(module, matrix);
    if (format_ == AdapterFormat::Kohya) return flat(module) + (is_first ? ".lora_down.weight" : ".lora_up.weight");
    return (diffusers_prefix + module + adapter_suffixes[static_cast<size_t>(matrix)]).str();
  }

  static std::string flat(std::string module) {
    std::replace(module.begin(), module.end(), '.', '_');
    return kohya_prefix.str() + module;
  }

  llvm::json::Object settings(const std::string& prefix) const {
    std::vector<std::string> modules;
    llvm::json::Object ranks, alphas;  // of modules that have others than most
    for (const PlannedAdapter& adapter : adapters_.modules) {
      modules.push_back(adapter.module);
      if (adapter.rank != adapters_.rank) ranks[adapter.module] = adapter.rank;
      if (adapter.alpha != adapters_.alpha) alphas[adapter.module] = adapter.alpha;
    }
    llvm::json::Value whole = nullptr;
    if (!whole_modules_.empty()) whole = llvm::json::Array(whole_modules_);
    llvm::json::Object object{{"peft_type", "LORA"},
                              {"task_type", nullptr},
                              {"base_model_name_or_path", nullptr},
                              {"r", adapters_.rank},
                              {"lora_alpha", adapters_.alpha},
                              {"lora_dropout", adapters_.dropout},
                              {"target_modules", llvm::json::Array(modules)},
                              {"bias", "none"},
                              {"fan_in_fan_out", adapters_.fan_in_fan_out},
                              {"use_rslora", adapters_.rslora},
                              {"use_dora", adapters_.has_magnitudes()},
                              {"init_lora_weights", true},
                              {"rank_pattern", std::move(ranks)},
                              {"alpha_pattern", std::move(alphas)},
                              {"modules_to_save", std::move(whole)},
                              {"inference_mode", true}};
    if (prefix.empty()) return object;
    llvm::json::Object prefixed;
    for (auto& [name, value] : object) prefixed[prefix + name.str()] = value;
    return prefixed;
  }

  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> texts{{"format", "pt"}};
    if (format_ == AdapterFormat::Diffusers)
      texts[diffusers_metadata.str()] = llvm::formatv("{0}", llvm::json::Value(settings(diffusers_prefix.str()))).str();
    return texts;
  }

  Status read_tensor(const SavedTensor& tensor, void* out) {
    if (!tensor.state) return std::memcpy(out, &tensor.value, sizeof tensor.value), Status::success();
    return session_.read_whole_state(*tensor.state, [&](const TensorView& bytes) -> Status {
      if (holds_nan(bytes) || holds_infinity(bytes))
        return model_error("the adapter is not saved, because '" + tensor.state->name + "' holds NaN or infinity");
      Tensor wide(Type(DType::F32, bytes.type.shape));
      for (int64_t i = 0; i < bytes.elements(); ++i) wide.view().set(i, bytes.get(i));
      if (tensor.transposed)
        transpose_f32(wide.view().as<float>(), static_cast<float*>(out), bytes.type.shape[0], bytes.type.shape[1]);
      else
        std::memcpy(out, wide.data(), static_cast<size_t>(wide.type().bytes()));
      return Status::success();
    });
  }

  Session& session_;
  const PlannedAdapters& adapters_;
  AdapterFormat format_;
  std::vector<SavedTensor> tensors_;
  std::set<std::string> whole_modules_;
};

std::string text_of(double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%g", number);
  return text;
}

Status has_no_adapters() { return usage_error("the plan has no adapters; compile it with --lora-rank, such as 8"); }

Status check_pair(const AdapterFile& file, const FileAdapter& pair, const PlannedAdapters& plan,
                  const PlannedAdapter& adapter) {
  const auto differs = [&](const llvm::Twine& what) {
    return model_error(file.path() + ": the adapter of " + pair.module + " " + what);
  };
  Type a = adapter.a_type;
  if (adapter.of_embedding) std::swap(a.shape[0], a.shape[1]);
  if (pair.rank != adapter.rank)
    return differs("has rank " + llvm::Twine(pair.rank) + ", the plan's have " + llvm::Twine(adapter.rank) +
                   (plan.from_export ? "" : "; compile with --lora-rank " + std::to_string(pair.rank)));
  if (pair.a.type.shape != a.shape || pair.b.type.shape != adapter.b_type.shape)
    return differs("has matrices " + to_string(pair.a.type) + " and " + to_string(pair.b.type) +
                   ", the plan's have the shapes " + to_string(a.shape) + " and " + to_string(adapter.b_type.shape));
  if (pair.magnitude.has_value() != !adapter.magnitude.empty())
    return differs(pair.magnitude ? "has magnitudes (DoRA), the plan's have none; compile with --dora"
                                  : "has no magnitudes (DoRA), the plan's have; compile without --dora");
  if (pair.magnitude && pair.magnitude->type.shape != Shape{adapter.b_type.shape[0]})
    return differs("has magnitudes " + to_string(pair.magnitude->type) + " beside a matrix B " +
                   to_string(adapter.b_type));
  const double scale = plan.scale(adapter);
  if (std::abs(pair.scale - scale) > 1e-6 * std::abs(scale))
    return differs("has the scale " + text_of(pair.scale) + ", the plan's have " + text_of(scale) +
                   (plan.from_export ? "" : "; compile with --lora-alpha " + text_of(pair.scale * plan.alpha / scale)) +
                   (plan.rslora && !plan.from_export ? " --rslora" : ""));
  return Status::success();
}

}  // namespace

Status check_adapter_target(const std::string& path, AdapterFormat format) {
  const bool is_file = ends_with(path, ".safetensors");
  if (is_file && format == AdapterFormat::Peft)
    return usage_error("--save-adapter " + path +
                       ": PEFT's adapters are folders; --adapter-format diffusers and kohya are files");
  if (is_file) return check_output_file(path);
  if (llvm::sys::fs::exists(path) && !llvm::sys::fs::is_directory(path))
    return usage_error("--save-adapter " + path + ": is no folder");
  return Status::success();
}

Status save_adapter(Session& session, const std::string& path, AdapterFormat format) {
  const std::optional<PlannedAdapters> adapters = adapters_of(session.plan());
  if (session.rank() != 0) return session.serve_pieces();
  Status saved = adapters ? AdapterWriter(session, *adapters, format).write(path) : has_no_adapters();
  return llvm::joinErrors(std::move(saved), session.end_serving());
}

Status load_adapter(Session& session, const std::string& path) {
  const std::optional<PlannedAdapters> adapters = adapters_of(session.plan());
  if (!adapters) return has_no_adapters();
  std::vector<std::string> modules;
  for (const PlannedAdapter& each : adapters->modules) modules.push_back(each.module);
  Result<AdapterFile> file = AdapterFile::open(path, modules);
  if (!file) return file.takeError();
  std::map<std::string, Tensor> values;  // by the state's name
  for (const PlannedAdapter& adapter : adapters->modules) {
    const FileAdapter* pair = file->find(adapter.module);
    if (!pair) return model_error(file->path() + ": has no adapter of " + adapter.module + ", which the plan adapts");
    if (Status s = check_pair(*file, *pair, *adapters, adapter)) return s;
    Result<Tensor> a = file->read(pair->a), b = file->read(pair->b);
    if (!a) return llvm::consumeError(b.takeError()), a.takeError();
    if (!b) return b.takeError();
    if (adapter.of_embedding) {
      Tensor turned(Type(DType::F32, adapter.a_type.shape));
      transpose_f32(a->view().as<float>(), turned.view().as<float>(), a->type().shape[0], a->type().shape[1]);
      a = std::move(turned);
    }
    if (pair->magnitude) {
      Result<Tensor> magnitude = file->read(*pair->magnitude);
      if (!magnitude) return magnitude.takeError();
      values[adapter.magnitude] = std::move(*magnitude);
    }
    values[adapter.a] = std::move(*a);
    values[adapter.b] = std::move(*b);
  }
  for (const WholeState& state : session.whole_states()) {
    if (!state.trained || state.init.kind != StateInit::Kind::Weights || parse_adapter_weight(state.init.source))
      continue;
    const llvm::StringRef name = whole_name(state, *adapters);
    const auto found = file->whole().find(name.str());
    if (found == file->whole().end())
      return model_error(file->path() + ": lacks '" + name + "', which the plan trains beside the adapters");
    if (found->second.type.shape != state.type.shape)
      return model_error(file->path() + ": '" + name + "' is " + to_string(found->second.type) + ", the plan needs " +
                         to_string(state.type));
    Result<Tensor> whole = file->read(found->second);
    if (!whole) return whole.takeError();
    values[state.name] = std::move(*whole);
  }
  SavedStates saved;
  saved.has = [&](const WholeState& state) { return values.count(state.name) > 0; };
  saved.load_range = [&](const WholeState& state, int64_t first, const TensorView& into) {
    const Tensor& from = values.at(state.name);
    for (int64_t i = 0; i < into.elements(); ++i) into.set(i, from.get(first + i));
    return Status::success();
  };
  return session.overwrite(saved);
}

Result<std::vector<std::string>> unmoved_adapters(Session& session, const PlannedAdapters& adapters) {
  std::vector<std::string> unmoved;
  if (session.rank() != 0) {
    if (Status s = session.serve_pieces()) return s;
    return unmoved;
  }
  Status status = Status::success();
  for (const PlannedAdapter& adapter : adapters.modules) {
    const WholeState* state = find_state(session, adapter.of_embedding ? adapter.a : adapter.b);
    status = session.read_whole_state(*state, [&](const TensorView& bytes) {
      bool is_zero = true;
      for (int64_t i = 0; i < bytes.elements() && is_zero; ++i) is_zero = bytes.get(i) == 0;
      if (is_zero) unmoved.push_back(adapter.module);
      return Status::success();
    });
    if (status) break;
  }
  status = llvm::joinErrors(std::move(status), session.end_serving());
  if (status) return status;
  return unmoved;
}

}  // namespace plimsoll
