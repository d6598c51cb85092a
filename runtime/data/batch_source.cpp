#include "runtime/data/batch_source.h"

#include "runtime/data/image_files.h"
#include "runtime/data/loader.h"
#include "runtime/data/padding.h"
#include "runtime/data/tensor_files.h"
#include "runtime/data/token_windows.h"

#include "llvm/Support/FileSystem.h"

namespace plimsoll {
namespace {

// Of a stage of a pipeline that has no inputs.
class NoInputs : public BatchSource {
 public:
  Status next(llvm::ArrayRef<TensorView>) override { return Status::success(); }
  Status seek(int64_t) override { return Status::success(); }
  llvm::StringRef item_name() const override { return "samples"; }
};

}  // namespace

Result<std::unique_ptr<BatchSource>> open_data(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                               const DataOptions& options) {
  if (inputs.empty() && options.may_have_no_inputs) return std::make_unique<NoInputs>();
  const bool is_images = has_images(path);
  if (options.transforms && !is_images) return usage_error(path + ": has no images, which --transforms is for");
  if (options.cache_bytes > 0 && !is_images)
    return usage_error(path + ": has no images, whose decoding --cache saves; tokens and tensors are read as they are");
  const bool is_tensors = is_tensor_file(path) || llvm::sys::fs::is_directory(path);
  if (options.document_end >= 0 && (is_images || is_tensors))
    return usage_error(path + ": is no file of token numbers, which --document-end is for");
  Result<std::unique_ptr<Dataset>> data =
      is_images    ? open_images(path, inputs, options.transforms.value_or(ImageTransforms()), options.cache_bytes,
                                 options.decoder)
      : is_tensors ? open_tensor_files(path, inputs)
                   : open_token_files(path, inputs, options);
  if (!data) return data.takeError();
  if (is_tensors && has_lengths(**data, inputs)) {
    data = pad_samples(std::move(*data), inputs, options.padding.value_or(Padding()));
    if (!data) return data.takeError();
  } else if (options.padding && (is_images || is_tensors)) {
    return usage_error(path + ": has samples of one length, which [transforms] cannot pad");
  }
  return load_batches(std::move(*data), inputs, options);
}

}  // namespace plimsoll
