#include "tests/support/kernel_calls.h"

#include "ir/text.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

namespace plimsoll::testing {
namespace {

void replace_all(std::string& text, llvm::StringRef old, const std::string& now) {
  for (size_t at = text.find(old.str()); at != std::string::npos; at = text.find(old.str(), at + now.size()))
    text.replace(at, old.size(), now);
}

}  // namespace

Result<Program> kernel_calls(llvm::StringRef name, DType dtype) {
  // A program built on another machine has other paths, but it runs in the repository.
  const std::string here = "tests/cuda/" + name.str();
  const std::string path = llvm::sys::fs::exists(here) ? here : PLIMSOLL_TEST_DATA "/cuda/" + name.str();
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> file = llvm::MemoryBuffer::getFile(path);
  if (!file) return system_error(path + ": " + file.getError().message());
  std::string text = (*file)->getBuffer().str();
  replace_all(text, ": T[", ": " + dtype_name(dtype).str() + "[");
  replace_all(text, "=T,", "=" + dtype_name(dtype).str() + ",");
  replace_all(text, "=T}", "=" + dtype_name(dtype).str() + "}");
  return parse_program(text, path);
}

int64_t integers_below(llvm::StringRef input) {
  int64_t below = 1;
  const size_t point = input.rfind('.');
  if (point != llvm::StringRef::npos) input.substr(point + 1).getAsInteger(10, below);
  return below;
}

}  // namespace plimsoll::testing
