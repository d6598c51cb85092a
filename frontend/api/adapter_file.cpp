#include "frontend/api/adapter_file.h"

#include "ir/support/json_text.h"
#include "ir/support/read_file.h"
#include "ir/support/regex_text.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

// What the end of a key says: which matrix it is. PEFT's own names, those of older files of diffusers, and kohya's.
struct KeyEnd {
  llvm::StringLiteral text;
  AdapterMatrix matrix;
};
constexpr KeyEnd key_ends[] = {
    {".lora_A.weight", AdapterMatrix::A},
    {".lora_B.weight", AdapterMatrix::B},
    {".lora_A.default.weight", AdapterMatrix::A},
    {".lora_B.default.weight", AdapterMatrix::B},
    {".lora.down.weight", AdapterMatrix::A},
    {".lora.up.weight", AdapterMatrix::B},
    {".lora_down.weight", AdapterMatrix::A},
    {".lora_up.weight", AdapterMatrix::B},
    {".lora_embedding_A", AdapterMatrix::EmbeddingA},
    {".lora_embedding_B", AdapterMatrix::EmbeddingB},
    {".lora_magnitude_vector", AdapterMatrix::Magnitude},
    {".lora_magnitude_vector.weight", AdapterMatrix::Magnitude},
    {".lora_magnitude_vector.default.weight", AdapterMatrix::Magnitude},
};
constexpr llvm::StringLiteral alpha_end = ".alpha";
constexpr llvm::StringLiteral kohya_prefixes[] = {"lora_unet_", "lora_te_", "lora_te1_", "lora_te2_"};

// The settings that a pair's scale follows from. Without them alpha is the rank.
struct Settings {
  std::optional<double> alpha;
  bool rslora = false, dora = false;
  std::vector<std::pair<llvm::Regex, double>> alpha_patterns;

  double scale(llvm::StringRef module, int64_t rank) const {
    const auto number = static_cast<double>(rank);
    double own = alpha.value_or(number);
    for (const auto& [pattern, value] : alpha_patterns)
      if (pattern.match(module)) own = value;
    return own / (rslora ? std::sqrt(number) : number);
  }
};

// `prefix` is what a file of several models puts before each name.
Result<Settings> read_settings(const llvm::json::Object& from, const std::string& prefix) {
  Settings settings;
  settings.alpha = number_field(&from, prefix + "lora_alpha");
  settings.rslora = boolean_field(&from, prefix + "use_rslora").value_or(false);
  settings.dora = boolean_field(&from, prefix + "use_dora").value_or(false);
  std::map<std::string, double> by_pattern;
  if (const llvm::json::Object* patterns = from.getObject(prefix + "alpha_pattern"))
    for (const auto& [pattern, value] : *patterns)
      if (const auto number = value.getAsNumber()) by_pattern[pattern.str()] = *number;
  for (const auto& [pattern, alpha] : by_pattern) {
    Result<llvm::Regex> regex = parse_regex("(.*\\.)?(" + pattern + ")", /*whole=*/true);
    if (!regex) return in_context("alpha_pattern", regex.takeError());
    settings.alpha_patterns.emplace_back(std::move(*regex), alpha);
  }
  return settings;
}

Result<Settings> parse_settings(llvm::StringRef text) {
  Result<llvm::json::Value> json = parse_json(text);
  if (!json) return json.takeError();
  const llvm::json::Object* object = json->getAsObject();
  if (!object) return model_error("is no JSON object");
  const bool is_prefixed =
      llvm::any_of(*object, [](const auto& each) { return starts_with(each.first.str(), diffusers_prefix); });
  return read_settings(*object, is_prefixed ? diffusers_prefix.str() : "");
}

Result<std::string> file_in(const std::string& path) {
  if (!llvm::sys::fs::is_directory(path)) return path;
  for (llvm::StringRef name : {peft_weights_file, diffusers_weights_file, kohya_weights_file})
    if (const std::string file = path + "/" + name.str(); llvm::sys::fs::exists(file)) return file;
  return model_error(path + ": holds no adapter: neither " + peft_weights_file + " nor " + diffusers_weights_file);
}

Result<Settings> settings_of(const SafetensorsFile& file, const std::string& path) {
  if (const auto found = file.metadata().find(diffusers_metadata.str()); found != file.metadata().end()) {
    Result<Settings> settings = parse_settings(found->second);
    return settings ? std::move(settings) : in_context(path + ": " + diffusers_metadata, settings.takeError());
  }
  llvm::SmallString<128> config(llvm::sys::path::parent_path(path));
  llvm::sys::path::append(config, peft_config_file);
  if (llvm::sys::path::filename(path) != peft_weights_file) return Settings();
  Result<std::unique_ptr<llvm::MemoryBuffer>> text = read_file(config);
  if (!text) return text.takeError();
  Result<Settings> settings = parse_settings((*text)->getBuffer());
  return settings ? std::move(settings) : in_context(config, settings.takeError());
}

class KeyReader {
 public:
  explicit KeyReader(llvm::ArrayRef<std::string> modules) {
    for (const std::string& module : modules) {
      modules_[module] = module;
      std::string flat = module;
      std::replace(flat.begin(), flat.end(), '.', '_');
      flat_modules_[flat] = module;
    }
  }

  // The module that a key without its end is of; empty: of none.
  std::string module_of(llvm::StringRef path) const {
    for (llvm::StringRef prefix : kohya_prefixes)
      if (llvm::StringRef flat = path; flat.consume_front(prefix)) return look_up(flat_modules_, flat);
    path.consume_front(adapter_prefix);
    const std::string module = look_up(modules_, path);
    return module.empty() ? look_up(modules_, path.split('.').second) : module;
  }

  std::string example() const { return modules_.empty() ? "" : ", such as " + modules_.begin()->first; }

 private:
  using Names = std::map<std::string, std::string>;
  static std::string look_up(const Names& names, llvm::StringRef name) {
    const auto found = names.find(name.str());
    return found == names.end() ? "" : found->second;
  }
  Names modules_, flat_modules_;
};

struct Pair {
  std::optional<TensorEntry> a, b, magnitude;
  std::optional<double> alpha;
  bool of_embedding = false;
};

}  // namespace

Result<Tensor> AdapterFile::read(const TensorEntry& entry) const {
  Tensor stored(entry.type);
  if (Status s = file_.read(entry, stored.data())) return s;
  if (entry.type.dtype == DType::F32) return stored;
  Tensor wide(Type(DType::F32, entry.type.shape));
  for (int64_t i = 0; i < wide.type().elements(); ++i) wide.view().set(i, stored.get(i));
  return wide;
}

const FileAdapter* AdapterFile::find(llvm::StringRef module) const {
  const auto found = llvm::find_if(adapters_, [&](const FileAdapter& each) { return each.module == module; });
  return found == adapters_.end() ? nullptr : &*found;
}

Result<AdapterFile> AdapterFile::open(const std::string& path, llvm::ArrayRef<std::string> modules) {
  Result<std::string> name = file_in(path);
  if (!name) return name.takeError();
  Result<SafetensorsFile> opened = SafetensorsFile::open(*name);
  if (!opened) return opened.takeError();
  Result<Settings> settings = settings_of(*opened, *name);
  if (!settings) return settings.takeError();
  AdapterFile file(std::move(*opened));
  file.path_ = *name;

  const KeyReader keys(modules);
  std::map<std::string, Pair> pairs;
  for (const TensorEntry& entry : file.file_.entries()) {
    const llvm::StringRef key = entry.name;
    if (key.contains(".base_layer.")) continue;  // the frozen weight beside an embedding's adapter
    const auto* end = llvm::find_if(key_ends, [&](const KeyEnd& each) { return ends_with(key, each.text); });
    const bool is_alpha = ends_with(key, alpha_end);
    if (end == std::end(key_ends) && !is_alpha) {
      llvm::StringRef whole = key;
      if (!whole.consume_front(adapter_prefix)) return model_error(*name + ": '" + key + "' is no part of an adapter");
      file.whole_.emplace(whole.str(), entry);
      continue;
    }
    const std::string module = keys.module_of(key.drop_back(is_alpha ? alpha_end.size() : end->text.size()));
    if (module.empty())
      return model_error(*name + ": '" + key + "' belongs to none of the " + llvm::Twine(modules.size()) +
                         " modules that may have adapters" + keys.example());
    Pair& pair = pairs[module];
    if (is_alpha) {
      Result<Tensor> alpha = file.read(entry);
      if (!alpha) return alpha.takeError();
      if (alpha->type().elements() == 1) pair.alpha = alpha->get(0);
      continue;
    }
    if (end->matrix == AdapterMatrix::Magnitude) {
      pair.magnitude = entry;
      continue;
    }
    const bool is_first = end->matrix == AdapterMatrix::A || end->matrix == AdapterMatrix::EmbeddingA;
    (is_first ? pair.a : pair.b) = entry;
    pair.of_embedding = end->matrix >= AdapterMatrix::EmbeddingA;
  }
  for (auto& [module, pair] : pairs) {
    if (!pair.a || !pair.b) return model_error(*name + ": the adapter of " + module + " lacks one of its two matrices");
    if (pair.a->type.rank() < 2 || pair.b->type.rank() < 2)
      return model_error(*name + ": the matrices of " + module + " are " + to_string(pair.a->type) + " and " +
                         to_string(pair.b->type));
    const int64_t rank = pair.a->type.shape[0];
    double scale = settings->scale(module, rank);
    if (pair.alpha) scale = (*pair.alpha == 0 ? static_cast<double>(rank) : *pair.alpha) / static_cast<double>(rank);
    if (settings->dora && !pair.magnitude)
      return model_error(*name + ": the adapter of " + module + " lacks its magnitudes (DoRA)");
    file.adapters_.push_back({module, *pair.a, *pair.b, pair.magnitude, rank, scale, pair.of_embedding});
  }
  if (file.adapters_.empty()) return model_error(*name + ": holds no adapter");
  return file;
}

}  // namespace plimsoll
