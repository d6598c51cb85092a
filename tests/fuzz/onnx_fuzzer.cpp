#include "frontend/onnx/import.h"
#include "tests/fuzz/file_of_bytes.h"

// A model, from its bytes to its graph.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  const testing::FileOfBytes file(bytes, size);
  Result<Model> model = Model::read(file.path());
  if (!model) return llvm::consumeError(model.takeError()), 0;
  survey_model(*model, {});
  return 0;
}
