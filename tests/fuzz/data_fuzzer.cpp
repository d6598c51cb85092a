#include "runtime/data/dataset.h"
#include "runtime/data/image_files.h"
#include "runtime/data/jpeg_header.h"
#include "runtime/data/numpy.h"
#include "runtime/data/padding.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/tar_file.h"
#include "runtime/data/tensor_files.h"
#include "runtime/data/token_windows.h"
#include "tests/fuzz/file_of_bytes.h"

// Files of data: the first byte says how the rest is read.

namespace plimsoll {
namespace {

void read_safetensors(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return llvm::consumeError(file.takeError());
  for (const TensorEntry& entry : file->entries()) {
    Tensor tensor(entry.type);
    llvm::consumeError(file->read(entry, tensor.data()));
  }
}

// Each input of the first samples.
void read_samples(Result<std::unique_ptr<Dataset>> data, llvm::ArrayRef<InputSpec> inputs) {
  if (!data) return llvm::consumeError(data.takeError());
  ReadBuffers buffers;
  for (size_t field = 0; field < inputs.size(); ++field) {
    Tensor row(Type(inputs[field].type.dtype, llvm::ArrayRef<int64_t>(inputs[field].type.shape).drop_front()));
    for (int64_t sample = 0; sample < std::min<int64_t>((*data)->samples(), 4); ++sample)
      llvm::consumeError((*data)->read(sample, field, row.view(), RandomStream{}, buffers));
  }
}

void read_tokens(const std::string& path) {
  const Type window(DType::I64, {2, 4});
  const std::vector<InputSpec> inputs = {{"ids", window, false, IndexInput{"ids", 300, true, false, {}}},
                                         {"labels", window, false, IndexInput{"labels", 300, false, true, 0}}};
  DataOptions options;
  options.document_end = 7;
  read_samples(open_token_files(path, inputs, options), inputs);
}

// Samples of differing lengths: `x` with `x.offsets`, `x.lengths`, `offsets` or `lengths` beside it.
void read_tensors(const std::string& path) {
  const std::vector<InputSpec> inputs = {{"x", Type(DType::F32, {2, 3}), false, std::nullopt},
                                         {"x_mask", Type(DType::F32, {2, 3}), false, std::nullopt}};
  Result<std::unique_ptr<Dataset>> data = open_tensor_files(path, inputs);
  if (!data) return llvm::consumeError(data.takeError());
  if (has_lengths(**data, inputs)) read_samples(pad_samples(std::move(*data), inputs, Padding()), inputs);
}

void read_images(const std::string& path) {
  const std::vector<InputSpec> inputs = {{"images", Type(DType::F32, {2, 3, 8, 8}), false, std::nullopt},
                                         {"labels", Type(DType::I64, {2}), false, std::nullopt}};
  read_samples(open_images(path, inputs, ImageTransforms()), inputs);
}

void read_image(llvm::ArrayRef<uint8_t> bytes) {
  constexpr ImageSize shown{8, 8};
  const auto middle = [](ImageSize size) {
    return Region{0, 0, static_cast<double>(size.width), static_cast<double>(size.height)};
  };
  size_of_plain_jpeg(bytes);
  Image image;
  if (Status s = decode_image("image", bytes, {middle, shown}, image)) return llvm::consumeError(std::move(s));
  std::vector<float> row, planes(3 * shown.width * shown.height);
  sample_image(image, image.region, shown, false, row, planes.data());
}

}  // namespace
}  // namespace plimsoll

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  if (size == 0) return 0;
  const llvm::StringRef content(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const testing::FileOfBytes file(bytes + 1, size - 1);
  const testing::FolderOfFiles folder;
  switch (bytes[0] % 10) {
    case 0: read_safetensors(file.path()); break;
    case 1: testing::take(read_numpy(file.path())); break;
    case 2: read_tokens(file.path()); break;
    case 3: testing::take(list_tar(file.path())); break;
    case 4: read_image({bytes + 1, size - 1}); break;
    case 5: read_images(folder.add("shard.tar", content)); break;
    case 6: read_tensors(folder.add("x.safetensors", content)); break;
    case 7: read_tensors(folder.add("x.npz", content)); break;
    default:
      folder.add("a.png", "");
      folder.add("c.jpg", "");
      folder.add(bytes[0] % 10 == 8 ? "labels.csv" : "labels.json", content);
      testing::take(list_images(folder.path()));
  }
  return 0;
}
