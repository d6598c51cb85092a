#include "runtime/data/dataset.h"
#include "runtime/data/numpy.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/tar_file.h"
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

void read_tokens(const std::string& path) {
  const Type window(DType::I64, {2, 4});
  const std::vector<InputSpec> inputs = {{"ids", window, false, IndexInput{"ids", 300, true, false, {}}},
                                         {"labels", window, false, IndexInput{"labels", 300, false, true, 0}}};
  DataOptions options;
  options.document_end = 7;
  Result<std::unique_ptr<Dataset>> data = open_token_files(path, inputs, options);
  if (!data) return llvm::consumeError(data.takeError());
  ReadBuffers buffers;
  Tensor row(Type(DType::I64, {4}));
  for (int64_t sample = 0; sample < std::min<int64_t>((*data)->samples(), 4); ++sample)
    for (size_t field = 0; field < inputs.size(); ++field)
      llvm::consumeError((*data)->read(sample, field, row.view(), RandomStream{}, buffers));
}

void read_image(llvm::ArrayRef<uint8_t> bytes) {
  constexpr ImageSize shown{8, 8};
  const auto middle = [](ImageSize size) {
    return Region{0, 0, static_cast<double>(size.width), static_cast<double>(size.height)};
  };
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
  const testing::FileOfBytes file(bytes + 1, size - 1);
  switch (bytes[0] % 5) {
    case 0: read_safetensors(file.path()); break;
    case 1: testing::take(read_numpy(file.path())); break;
    case 2: read_tokens(file.path()); break;
    case 3: testing::take(list_tar(file.path())); break;
    default: read_image({bytes + 1, size - 1});
  }
  return 0;
}
