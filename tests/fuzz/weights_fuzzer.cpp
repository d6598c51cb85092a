#include "frontend/api/adapter_file.h"
#include "frontend/api/weights.h"
#include "tests/fuzz/file_of_bytes.h"

// Weights and adapters that other programs wrote: the first byte says which, and where the settings beside an adapter's
// matrices begin.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral weights[] = {"fc.weight", "fc.weight.nested_offset", "fc.weight.absmax"};

void read_weights(const std::string& path) {
  Result<Weights> file = open_weights(path);
  if (!file) return llvm::consumeError(file.takeError());
  for (llvm::StringRef name : weights) {
    const std::optional<Type> type = file->type_of(name);
    if (!type || type->elements() > elements_converted_at_once) continue;
    Tensor into(Type(DType::F32, type->shape));
    llvm::consumeError(file->load(name, into.view()));
  }
}

void read_adapter(const std::string& path) {
  Result<AdapterFile> file = AdapterFile::open(path, {"fc", "blocks.0.proj"});
  if (!file) return llvm::consumeError(file.takeError());
  for (const FileAdapter& adapter : file->adapters()) {
    testing::take(file->read(adapter.a));
    testing::take(file->read(adapter.b));
  }
}

}  // namespace
}  // namespace plimsoll

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  if (size < 3) return 0;
  const llvm::StringRef content(reinterpret_cast<const char*>(bytes) + 3, size - 3);
  const size_t matrices = std::min<size_t>(content.size(), bytes[1] | bytes[2] << 8);
  const testing::FolderOfFiles folder;
  switch (bytes[0] % 5) {
    case 0: read_weights(folder.add("w.safetensors", content)); break;
    case 1: read_weights(folder.add("w.onnx", content)); break;
    case 2: read_adapter(folder.add(diffusers_weights_file.str(), content)); break;
    case 3: read_adapter(folder.add(kohya_weights_file.str(), content)); break;
    default:
      folder.add(peft_weights_file.str(), content.take_front(matrices));
      folder.add(peft_config_file.str(), content.drop_front(matrices));
      read_adapter(folder.path());
  }
  return 0;
}
