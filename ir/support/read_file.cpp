#include "ir/support/read_file.h"

#include "llvm/Support/FileSystem.h"

namespace plimsoll {

Result<std::unique_ptr<llvm::MemoryBuffer>> read_file(llvm::StringRef path) {
  llvm::sys::fs::file_status status;
  if (std::error_code failure = llvm::sys::fs::status(path, status))
    return system_error(path + ": " + failure.message());
  if (!llvm::sys::fs::is_regular_file(status)) return system_error(path + ": not a regular file");
  auto file = llvm::MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file) return system_error(path + ": " + file.getError().message());
  return std::move(*file);
}

}  // namespace plimsoll
