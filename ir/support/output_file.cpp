#include "ir/support/output_file.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include <unistd.h>
#include <cerrno>

namespace plimsoll {
namespace {

Status file_error(llvm::StringRef path, std::error_code code) { return system_error(path + ": " + code.message()); }

// LLVM's TempFile also removes the file when a signal ends the program.
Status fill(llvm::sys::fs::TempFile& file, llvm::StringRef path, llvm::function_ref<Status(llvm::raw_ostream&)> write) {
  llvm::raw_fd_ostream out(file.FD, /*shouldClose=*/false);
  Status status = write(out);
  out.flush();
  std::error_code failure = out.error();
  out.clear_error();  // an error left in the stream would end the program
  if (status) return status;
  if (failure) return file_error(path, failure);
  if (fsync(file.FD) != 0 && errno != EINVAL) return file_error(path, std::error_code(errno, std::generic_category()));
  return Status::success();
}

}  // namespace

Status write_output_file(llvm::StringRef path, llvm::function_ref<Status(llvm::raw_ostream&)> write) {
  auto file = llvm::sys::fs::TempFile::create(path + ".%%%%%%.part");
  if (!file) return in_context(path, file.takeError());
  if (Status s = fill(*file, path, write)) {
    llvm::consumeError(file->discard());
    return s;
  }
  if (Status s = file->keep(path)) return in_context(path, std::move(s));
  return Status::success();
}

}  // namespace plimsoll
