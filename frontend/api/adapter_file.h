#pragma once

// Files of adapters (LoRA) as other programs write them, read as pairs of matrices by module.

#include "ir/adapter_names.h"
#include "runtime/data/safetensors.h"

namespace plimsoll {

enum class AdapterFormat : uint8_t {
  Peft,       // a folder with adapter_model.safetensors and adapter_config.json
  Diffusers,  // pytorch_lora_weights.safetensors, its settings as metadata
  Kohya,      // one file, the scale beside each pair of matrices
};
inline constexpr std::array<llvm::StringLiteral, 3> adapter_formats{"peft", "diffusers", "kohya"};

// Names that a folder of each format has inside.
inline constexpr llvm::StringLiteral peft_weights_file = "adapter_model.safetensors",
                                     peft_config_file = "adapter_config.json",
                                     diffusers_weights_file = "pytorch_lora_weights.safetensors",
                                     kohya_weights_file = "lora.safetensors";
// Key of the settings in the metadata of a file of diffusers.
inline constexpr llvm::StringLiteral diffusers_metadata = "lora_adapter_metadata";
// What keys begin with in files of an image model's denoiser.
inline constexpr llvm::StringLiteral diffusers_prefix = "unet.", kohya_prefix = "lora_unet_";

// One pair of matrices in a file.
struct FileAdapter {
  std::string module;                                   // its path in the model
  TensorEntry a, b;                                     // of an embedding A is [rank, rows]
  std::optional<TensorEntry> magnitude = std::nullopt;  // of DoRA: [outputs]
  int64_t rank = 0;
  double scale = 1;  // of B A
  bool of_embedding = false;
};

class AdapterFile {
 public:
  // `path` is a folder or a file. `modules` are the paths of all modules that may have adapters, by which a file's keys
  // are told: its prefix, and underscores in place of dots. Errors: a key of no such module, a pair of which half is
  // missing, a kind of adapter that is not known.
  static Result<AdapterFile> open(const std::string& path, llvm::ArrayRef<std::string> modules);

  const std::string& path() const { return path_; }
  llvm::ArrayRef<FileAdapter> adapters() const { return adapters_; }  // by module
  const FileAdapter* find(llvm::StringRef module) const;
  // Parameters that were trained and saved whole, by their names without the prefix.
  const std::map<std::string, TensorEntry>& whole() const { return whole_; }
  // The numbers of an entry, as f32.
  Result<Tensor> read(const TensorEntry& entry) const;

 private:
  explicit AdapterFile(SafetensorsFile file) : file_(std::move(file)) {}

  std::string path_;
  SafetensorsFile file_;
  std::vector<FileAdapter> adapters_;
  std::map<std::string, TensorEntry> whole_;
};

}  // namespace plimsoll
