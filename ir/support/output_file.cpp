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

// Renaming a file to the name of a device or a link would replace it.
Status check_kind(llvm::StringRef path) {
  llvm::sys::fs::file_status status;
  if (llvm::sys::fs::status(path, status, /*follow=*/false)) return Status::success();  // there is none
  using llvm::sys::fs::file_type;
  const llvm::StringRef kind = status.type() == file_type::symlink_file     ? "a symbolic link"
                               : status.type() == file_type::directory_file ? "a folder"
                               : status.type() == file_type::fifo_file      ? "a fifo"
                               : status.type() == file_type::socket_file    ? "a socket"
                                                                            : "a device";
  if (status.type() == file_type::regular_file) return Status::success();
  return usage_error(path + ": is " + kind + ", which no file may replace");
}

}  // namespace

Status check_not_an_input(llvm::StringRef path, llvm::ArrayRef<llvm::StringRef> inputs) {
  for (llvm::StringRef input : inputs) {
    bool same = false;
    if (!input.empty() && !llvm::sys::fs::equivalent(path, input, same) && same)
      return usage_error(path + ": is an input of this command, and would be replaced");
  }
  return Status::success();
}

Status check_output_file(llvm::StringRef path, llvm::ArrayRef<llvm::StringRef> inputs) {
  if (Status s = check_kind(path)) return s;
  if (Status s = check_not_an_input(path, inputs)) return s;
  auto file = llvm::sys::fs::TempFile::create(path + ".%%%%%%.part");
  if (!file) return in_context(path, file.takeError());
  return file->discard();
}

Status write_output_file(llvm::StringRef path, llvm::function_ref<Status(llvm::raw_ostream&)> write) {
  if (Status s = check_kind(path)) return s;
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
