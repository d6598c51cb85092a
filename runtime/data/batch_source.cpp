#include "runtime/data/batch_source.h"

#include "ir/support/strings.h"
#include "runtime/data/numpy.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/token_reader.h"

#include <cstring>

namespace plimsoll {
namespace {

// One batch, the same every step.
class FixedBatch : public BatchSource {
 public:
  FixedBatch(std::vector<Tensor> tensors, int64_t items, bool tokens)
      : tensors_(std::move(tensors)), items_(items), tokens_(tokens) {}

  Status next(llvm::ArrayRef<TensorView> inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i)
      std::memcpy(inputs[i].data, tensors_[i].data(), static_cast<size_t>(inputs[i].type.bytes()));
    return Status::success();
  }
  int64_t items_per_batch() const override { return items_; }
  llvm::StringRef item_name() const override { return tokens_ ? "tokens" : "samples"; }

 private:
  std::vector<Tensor> tensors_;
  int64_t items_;
  bool tokens_;
};

// The type of the first input that has samples; of no input a scalar. One row is for all samples, where others have
// more.
Type type_of_samples(llvm::ArrayRef<InputSpec> inputs) {
  auto has_rows = [](int64_t rows) {
    return
        [rows](const InputSpec& input) { return !input.whole && input.type.rank() > 0 && input.type.shape[0] >= rows; };
  };
  const auto* found = llvm::find_if(inputs, has_rows(2));
  if (found == inputs.end()) found = llvm::find_if(inputs, has_rows(0));
  return found == inputs.end() ? Type() : found->type;
}

// Integer batches of [rows, time] are counted in tokens.
bool looks_like_tokens(llvm::ArrayRef<InputSpec> inputs) {
  const Type type = type_of_samples(inputs);
  return type.rank() == 2 && !is_float(type.dtype);
}

int64_t count_items(llvm::ArrayRef<InputSpec> inputs) {
  const Type type = type_of_samples(inputs);
  if (type.rank() == 0) return 1;
  return looks_like_tokens(inputs) ? type.elements() : type.shape[0];
}

std::string list_names(llvm::ArrayRef<NamedTensor> tensors) {
  std::string text;
  for (const NamedTensor& t : tensors)
    text += (text.empty() ? "" : ", ") + (t.name.empty() ? "one unnamed array" : t.name);
  return text;
}

// Numbers of another dtype are taken when every one of them survives the conversion.
Result<Tensor> converted(llvm::StringRef path, const InputSpec& input, const Tensor& tensor) {
  if (tensor.type() == input.type) return tensor;
  if (tensor.type().shape != input.type.shape || is_float(tensor.type().dtype) != is_float(input.type.dtype))
    return model_error(path + ": input '" + input.name + "' is " + to_string(tensor.type()) + ", the plan needs " +
                       to_string(input.type));
  Tensor out(input.type);
  for (int64_t i = 0; i < tensor.type().elements(); ++i) {
    if (is_float(input.type.dtype)) {
      out.view().set(i, tensor.get(i));
    } else {
      out.view().set_int(i, tensor.get_int(i));
      if (out.get_int(i) != tensor.get_int(i))
        return model_error(path + ": input '" + input.name + "': " + llvm::Twine(tensor.get_int(i)) + " does not fit " +
                           dtype_name(input.type.dtype));
    }
  }
  return out;
}

// An input as the batch of all ranks has it.
InputSpec of_all_ranks(InputSpec input, const DataOptions& options) {
  if (!input.whole && input.type.rank() > 0) input.type.shape[0] *= options.ranks;
  return input;
}

Tensor rows_of(const Tensor& batch, const Type& rows, const DataOptions& options) {
  return Tensor(rows, static_cast<const char*>(batch.data()) + options.rank * rows.bytes());
}

Result<std::unique_ptr<BatchSource>> fixed_batch(llvm::StringRef path, std::vector<NamedTensor> found,
                                                 llvm::ArrayRef<InputSpec> inputs, const DataOptions& options) {
  if (found.size() == 1 && found[0].name.empty() && inputs.size() == 1) found[0].name = inputs[0].name;
  std::vector<Tensor> tensors;
  for (const InputSpec& input : inputs) {
    auto at = llvm::find_if(found, [&](const NamedTensor& t) { return t.name == input.name; });
    if (at == found.end())
      return model_error(path + ": has no tensor '" + input.name + "' for the plan's input " + to_string(input.type) +
                         "; it has " + list_names(found));
    Result<Tensor> tensor = converted(path, of_all_ranks(input, options), at->tensor);
    if (!tensor) return tensor.takeError();
    tensors.push_back(input.whole ? std::move(*tensor) : rows_of(*tensor, input.type, options));
  }
  return std::make_unique<FixedBatch>(std::move(tensors), count_items(inputs), looks_like_tokens(inputs));
}

Result<std::vector<NamedTensor>> read_named(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs) {
  if (!ends_with(path, ".safetensors")) return read_numpy(path);
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  std::vector<NamedTensor> found;
  for (const TensorEntry& entry : file->entries()) {
    bool wanted = llvm::any_of(inputs, [&](const InputSpec& input) { return input.name == entry.name; });
    found.push_back({entry.name, wanted ? Tensor(entry.type) : Tensor(Type(entry.type.dtype, {0}))});
    if (!wanted) continue;
    if (Status s = file->read(entry, found.back().tensor.data())) return s;
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<BatchSource>> open_data(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                               const DataOptions& options) {
  if (inputs.empty() && options.may_have_no_inputs)
    return std::make_unique<FixedBatch>(std::vector<Tensor>(), 0, false);
  bool named = ends_with(path, ".safetensors") || ends_with(path, ".npz") || ends_with(path, ".npy");
  if (!named) return open_token_file(path, inputs, options);
  Result<std::vector<NamedTensor>> found = read_named(path, inputs);
  if (!found) return found.takeError();
  return fixed_batch(path, std::move(*found), inputs, options);
}

}  // namespace plimsoll
