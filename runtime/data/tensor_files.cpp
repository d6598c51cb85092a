#include "runtime/data/tensor_files.h"

#include "ir/support/strings.h"
#include "runtime/data/input_file.h"
#include "runtime/data/match_inputs.h"
#include "runtime/data/numpy.h"
#include "runtime/data/safetensors.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace plimsoll {
namespace {

struct ShardTensor {
  std::string name;
  Type type;           // with all samples
  int64_t offset = 0;  // in the file, where the tensor is not in memory
  std::optional<Tensor> in_memory;
};

struct Shard {
  std::string path;
  std::optional<InputFile> file;
  std::vector<ShardTensor> tensors;
  int64_t first_sample = 0, samples = 0;

  const ShardTensor* find(llvm::StringRef name) const {
    const auto found = llvm::find_if(tensors, [&](const ShardTensor& tensor) { return tensor.name == name; });
    return found == tensors.end() ? nullptr : &*found;
  }
};

Result<Shard> open_safetensors(llvm::StringRef path) {
  Result<SafetensorsFile> header = SafetensorsFile::open(path);
  if (!header) return header.takeError();
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  Shard shard{path.str(), std::move(*file), {}};
  for (const TensorEntry& entry : header->entries())
    shard.tensors.push_back({entry.name, entry.type, entry.offset, std::nullopt});
  return shard;
}

Result<Shard> open_shard(llvm::StringRef path) {
  if (ends_with(path, ".safetensors")) return open_safetensors(path);
  Result<std::vector<NamedTensor>> found = read_numpy(path);
  if (!found) return found.takeError();
  Shard shard{path.str(), std::nullopt, {}};
  for (NamedTensor& named : *found) {
    const Type type = named.tensor.type();
    shard.tensors.push_back({std::move(named.name), type, 0, std::move(named.tensor)});
  }
  return shard;
}

Result<std::vector<std::string>> shard_paths(llvm::StringRef path) {
  if (!llvm::sys::fs::is_directory(path)) return std::vector<std::string>{path.str()};
  std::vector<std::string> paths;
  std::error_code failure;
  for (llvm::sys::fs::directory_iterator at(path, failure), end; !failure && at != end; at.increment(failure))
    if (is_tensor_file(at->path())) paths.push_back(at->path());
  if (failure) return system_error(path + ": " + failure.message());
  if (paths.empty()) return model_error(path + ": the folder has no .safetensors, .npz or .npy file");
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool has_samples(const ShardTensor& tensor) { return tensor.type.rank() > 0; }

// The first dimension that most tensors have, the larger of two.
int64_t commonest_count(const Shard& shard) {
  std::map<int64_t, int> counts;
  for (const ShardTensor& tensor : shard.tensors)
    if (has_samples(tensor)) ++counts[tensor.type.shape[0]];
  int64_t commonest = 0;
  int most = 0;
  for (const auto& [samples, count] : counts)
    if (count >= most) commonest = samples, most = count;
  return commonest;
}

// An input of one row may be the same for all samples: its tensor has this row alone and counts none.
Result<int64_t> count_samples(const Shard& shard, llvm::ArrayRef<InputSpec> inputs) {
  const ShardTensor* counted = nullptr;
  for (const InputSpec& input : inputs) {
    const ShardTensor* tensor = shard.find(input.name);
    if (!tensor || !has_samples(*tensor) || !has_rows_of_samples(input, inputs)) continue;
    const int64_t samples = tensor->type.shape[0];
    if (counted && samples == counted->type.shape[0]) continue;
    const bool may_be_whole = samples == 1 && input.type.shape[0] == 1;
    if (counted && may_be_whole) continue;
    if (counted && !(counted->type.shape[0] == 1 && input.type.shape[0] == 1))
      return model_error(shard.path + ": '" + counted->name + "' has " + llvm::Twine(counted->type.shape[0]) +
                         " samples, '" + tensor->name + "' has " + llvm::Twine(samples));
    counted = tensor;
  }
  return counted ? counted->type.shape[0] : commonest_count(shard);
}

Type sample_of(const Type& type) { return Type(type.dtype, llvm::ArrayRef<int64_t>(type.shape).drop_front()); }

class TensorFiles : public Dataset {
 public:
  TensorFiles(std::string path, std::vector<Shard> shards, std::vector<Field> fields)
      : path_(std::move(path)), shards_(std::move(shards)), fields_(std::move(fields)) {}

  int64_t samples() const override { return shards_.back().first_sample + shards_.back().samples; }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return path_; }

  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream&, ReadBuffers&) const override {
    const Shard& shard = fields_[field].per_sample ? shard_of(sample) : shards_.front();
    const int64_t row = fields_[field].per_sample ? sample - shard.first_sample : 0;
    const ShardTensor& tensor = shard.tensors[field];
    const int64_t bytes = fields_[field].type.bytes();
    if (!tensor.in_memory) return shard.file->read_at(tensor.offset + row * bytes, into.data, bytes);
    std::memcpy(into.data, tensor.in_memory->view().as<char>() + row * bytes, static_cast<size_t>(bytes));
    return Status::success();
  }

 private:
  const Shard& shard_of(int64_t sample) const {
    return *std::prev(std::upper_bound(shards_.begin(), shards_.end(), sample,
                                       [](int64_t at, const Shard& shard) { return at < shard.first_sample; }));
  }

  std::string path_;
  std::vector<Shard> shards_;  // each has the fields' tensors in their order
  std::vector<Field> fields_;
};

std::vector<Field> fields_of(const Shard& shard) {
  std::vector<Field> fields;
  for (const ShardTensor& tensor : shard.tensors) {
    const bool per_sample = has_samples(tensor) && tensor.type.shape[0] == shard.samples;
    fields.push_back({tensor.name, per_sample ? sample_of(tensor.type) : tensor.type, per_sample});
  }
  return fields;
}

// The tensors of `shard` in the order of the fields.
Status arrange(Shard& shard, llvm::ArrayRef<Field> fields) {
  std::vector<ShardTensor> arranged;
  for (const Field& field : fields) {
    const auto found =
        llvm::find_if(shard.tensors, [&](const ShardTensor& tensor) { return tensor.name == field.name; });
    if (found == shard.tensors.end())
      return model_error(shard.path + ": has no tensor '" + field.name + "', which other shards have");
    const bool fits = field.per_sample ? has_samples(*found) && found->type.shape[0] == shard.samples &&
                                             sample_of(found->type) == field.type
                                       : found->type == field.type;
    if (!fits)
      return model_error(shard.path + ": '" + field.name + "' is " + to_string(found->type) + ", in the first shard " +
                         (field.per_sample ? "a sample" : "it") + " is " + to_string(field.type));
    arranged.push_back(std::move(*found));
  }
  shard.tensors = std::move(arranged);
  return Status::success();
}

}  // namespace

bool is_tensor_file(llvm::StringRef path) {
  return ends_with(path, ".safetensors") || ends_with(path, ".npz") || ends_with(path, ".npy");
}

Result<std::unique_ptr<Dataset>> open_tensor_files(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs) {
  Result<std::vector<std::string>> paths = shard_paths(path);
  if (!paths) return paths.takeError();
  std::vector<Shard> shards;
  std::vector<Field> fields;
  int64_t samples = 0;
  for (const std::string& file : *paths) {
    Result<Shard> shard = open_shard(file);
    if (!shard) return shard.takeError();
    if (shard->tensors.size() == 1 && shard->tensors[0].name.empty() && inputs.size() == 1)
      shard->tensors[0].name = inputs[0].name;
    Result<int64_t> count = count_samples(*shard, inputs);
    if (!count) return count.takeError();
    shard->first_sample = samples;
    shard->samples = *count;
    samples += *count;
    if (shards.empty()) fields = fields_of(*shard);
    if (Status s = arrange(*shard, fields)) return s;
    shards.push_back(std::move(*shard));
  }
  if (samples == 0) return model_error(path + ": has no samples");
  return std::make_unique<TensorFiles>(path.str(), std::move(shards), std::move(fields));
}

}  // namespace plimsoll
