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
#include <limits>
#include <map>
#include <memory>
#include <utility>

namespace plimsoll {
namespace {

struct ShardTensor {
  std::string name;
  Type type;           // with all samples
  int64_t offset = 0;  // in the file, where the tensor is not in memory
  std::optional<Tensor> in_memory;
  // Of samples that differ in length: where each begins along the first dimension, and where the last one ends.
  std::shared_ptr<const std::vector<int64_t>> starts;

  int64_t samples() const { return starts ? static_cast<int64_t>(starts->size()) - 1 : type.shape[0]; }
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

// The numbers of a tensor that says how long samples are.
Result<std::vector<int64_t>> read_numbers(const Shard& shard, const ShardTensor& tensor) {
  Tensor held;
  if (!tensor.in_memory) {
    held = Tensor(tensor.type);
    if (Status s = shard.file->read_at(tensor.offset, held.data(), tensor.type.bytes())) return s;
  }
  const TensorView numbers = tensor.in_memory ? tensor.in_memory->view() : held.view();
  std::vector<int64_t> all;
  for (int64_t i = 0; i < numbers.elements(); ++i) all.push_back(numbers.get_int(i));
  return all;
}

constexpr llvm::StringLiteral offsets_name = "offsets", lengths_name = "lengths";

bool is_list_of_integers(const ShardTensor& tensor) { return tensor.type.rank() == 1 && is_integer(tensor.type.dtype); }

using Starts = std::shared_ptr<const std::vector<int64_t>>;

// Offsets as they are, or the running sum of lengths. Null where they do not describe samples of `total` elements.
Result<Starts> starts_from(const Shard& shard, const ShardTensor& tensor, bool are_lengths) {
  Result<std::vector<int64_t>> numbers = read_numbers(shard, tensor);
  if (!numbers) return numbers.takeError();
  if (are_lengths) {
    int64_t sum = 0;
    for (int64_t& number : *numbers) {
      if (number < 0 || number > std::numeric_limits<int64_t>::max() - sum) return Starts();
      sum += std::exchange(number, sum);
    }
    numbers->push_back(sum);
  }
  const bool is_ordered = numbers->size() > 1 && numbers->front() == 0 && llvm::is_sorted(*numbers);
  return is_ordered ? std::make_shared<const std::vector<int64_t>>(std::move(*numbers)) : Starts();
}

// Samples of one element each do not differ in length.
bool is_one_each(const std::vector<int64_t>& starts) {
  return starts.back() + 1 == static_cast<int64_t>(starts.size());
}

// Finds what says how long the samples of each tensor are: NAME.offsets or NAME.lengths of this tensor, or `offsets` or
// `lengths` of all tensors whose first dimension is their sum.
Status find_lengths(Shard& shard) {
  for (bool are_lengths : {false, true})
    for (size_t i = 0; i < shard.tensors.size(); ++i) {
      const std::string suffix = (are_lengths ? lengths_name : offsets_name).str();
      const llvm::StringRef name = shard.tensors[i].name;
      const bool is_of_all = name == suffix;
      if (!(is_of_all || ends_with(name, "." + suffix)) || !is_list_of_integers(shard.tensors[i])) continue;
      Result<Starts> starts = starts_from(shard, shard.tensors[i], are_lengths);
      if (!starts) return starts.takeError();
      const llvm::StringRef of = name.drop_back(std::min(name.size(), suffix.size() + 1));
      for (ShardTensor& tensor : shard.tensors) {
        if (&tensor == &shard.tensors[i] || tensor.starts || tensor.type.rank() == 0) continue;
        if (!is_of_all && tensor.name != of) continue;
        const bool fits = *starts && (*starts)->back() == tensor.type.shape[0];
        if (fits && !(is_of_all && is_one_each(**starts))) tensor.starts = *starts;
        if (!fits && !is_of_all)
          return model_error(shard.path + ": '" + name + "' does not say where the samples of '" + of +
                             "' begin: " + (are_lengths ? "lengths" : "offsets from 0 on") + " that end at " +
                             llvm::Twine(tensor.type.shape[0]) + " are needed");
      }
    }
  // Offsets have one number more than there are samples, and are no field.
  const bool has_starts = llvm::any_of(shard.tensors, [](const ShardTensor& each) { return each.starts != nullptr; });
  if (has_starts)
    llvm::erase_if(shard.tensors, [&](const ShardTensor& tensor) {
      return tensor.name == offsets_name || ends_with(tensor.name, ".offsets");
    });
  return Status::success();
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
    if (has_samples(tensor)) ++counts[tensor.samples()];
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
    const int64_t samples = tensor->samples();
    if (counted && samples == counted->samples()) continue;
    const bool may_be_whole = samples == 1 && input.type.shape[0] == 1;
    if (counted && may_be_whole) continue;
    if (counted && !(counted->samples() == 1 && input.type.shape[0] == 1))
      return model_error(shard.path + ": '" + counted->name + "' has " + llvm::Twine(counted->samples()) +
                         " samples, '" + tensor->name + "' has " + llvm::Twine(samples));
    counted = tensor;
  }
  return counted ? counted->samples() : commonest_count(shard);
}

Type sample_of(const Type& type) { return Type(type.dtype, llvm::ArrayRef<int64_t>(type.shape).drop_front()); }

class TensorFiles : public Dataset {
 public:
  TensorFiles(std::string path, std::vector<Shard> shards, std::vector<Field> fields)
      : path_(std::move(path)), shards_(std::move(shards)), fields_(std::move(fields)) {}

  int64_t samples() const override { return shards_.back().first_sample + shards_.back().samples; }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return path_; }
  std::string where_is(int64_t sample) const override {
    const Shard& shard = shard_of(sample);
    return shard.path + ": sample " + std::to_string(sample - shard.first_sample);
  }

  // Samples that follow each other in a file, and go to memory in that order, are read at once.
  Status read_rows(size_t field, llvm::ArrayRef<SampleRow> rows, ReadBuffers& buffers) const override {
    while (!rows.empty()) {
      const size_t together = neighbours(field, rows);
      if (Status s = read_bytes(rows[0].sample, field, rows[0].into.data,
                                static_cast<int64_t>(together) * rows[0].into.type.bytes()))
        return s;
      rows = rows.drop_front(together);
    }
    return Status::success();
  }

  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream&, ReadBuffers&) const override {
    return read_bytes(sample, field, into.data, into.type.bytes());
  }
  int64_t length(int64_t sample, size_t field) const override {
    const Shard& shard = shard_of(sample);
    const std::vector<int64_t>& starts = *shard.tensors[field].starts;
    const auto row = static_cast<size_t>(sample - shard.first_sample);
    return starts[row + 1] - starts[row];
  }

 private:
  // How many rows from the first on are neighbours.
  size_t neighbours(size_t field, llvm::ArrayRef<SampleRow> rows) const {
    const Shard& shard = shard_of(rows[0].sample);
    if (!fields_[field].per_sample || shard.tensors[field].starts) return 1;
    const int64_t bytes = rows[0].into.type.bytes(), end = shard.first_sample + shard.samples;
    if (bytes != fields_[field].type.bytes()) return 1;
    size_t count = 1;
    while (count < rows.size() && rows[count].sample == rows[0].sample + static_cast<int64_t>(count) &&
           rows[count].sample < end &&
           rows[count].into.data == static_cast<char*>(rows[0].into.data) + static_cast<int64_t>(count) * bytes)
      ++count;
    return count;
  }

  Status read_bytes(int64_t sample, size_t field, void* into, int64_t bytes) const {
    const Shard& shard = fields_[field].per_sample ? shard_of(sample) : shards_.front();
    const int64_t row = fields_[field].per_sample ? sample - shard.first_sample : 0;
    const ShardTensor& tensor = shard.tensors[field];
    const int64_t element = fields_[field].type.bytes(),
                  first = (tensor.starts ? (*tensor.starts)[static_cast<size_t>(row)] : row) * element;
    if (!tensor.in_memory) return shard.file->read_at(tensor.offset + first, into, bytes);
    std::memcpy(into, tensor.in_memory->view().as<char>() + first, static_cast<size_t>(bytes));
    return Status::success();
  }

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
    const bool per_sample = has_samples(tensor) && tensor.samples() == shard.samples;
    fields.push_back({tensor.name, per_sample ? sample_of(tensor.type) : tensor.type, per_sample,
                      per_sample && tensor.starts != nullptr});
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
    const bool fits = field.per_sample
                          ? has_samples(*found) && found->samples() == shard.samples &&
                                (found->starts != nullptr) == field.varies && sample_of(found->type) == field.type
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
    if (Status s = find_lengths(*shard)) return s;
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
