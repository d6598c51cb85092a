#include "frontend/log/line_file.h"

#include "ir/support/file_lock.h"

#include "llvm/Support/MemoryBuffer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

namespace plimsoll {
namespace {

Status failure_of(llvm::StringRef path) { return system_error(path + ": " + std::generic_category().message(errno)); }

// The bytes up to the end of the last line of a step up to `done`.
size_t bytes_up_to(llvm::StringRef text, int64_t done, LineFile::StepOf step_of) {
  size_t kept = 0;
  for (size_t at = 0, end; (end = text.find('\n', at)) != llvm::StringRef::npos; at = end + 1)
    if (const std::optional<int64_t> step = step_of(text.slice(at, end)); step && *step <= done) kept = end + 1;
  return kept;
}

}  // namespace

Result<LineFile> LineFile::open(llvm::StringRef path, int64_t done, StepOf step_of) {
  LineFile file;
  file.path_ = path.str();
  const int fd = ::open(file.path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return failure_of(path);
  file.out_ = std::make_unique<llvm::raw_fd_ostream>(fd, /*shouldClose=*/true);
  struct stat status = {};
  // A terminal or a pipe keeps nothing, and may have several writers.
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return file;
  if (Status s = lock_against_writers(fd, path)) return s;
  size_t kept = 0;
  if (done > 0) {
    auto text = llvm::MemoryBuffer::getFile(path);
    if (!text) return system_error(path + ": " + text.getError().message());
    kept = bytes_up_to((*text)->getBuffer(), done, step_of);
    file.first_line_ = (*text)->getBuffer().take_front(kept).split('\n').first.str();
  }
  return ::ftruncate(fd, static_cast<off_t>(kept)) == 0 ? Result<LineFile>(std::move(file)) : failure_of(path);
}

Status LineFile::write(llvm::StringRef line) {
  *out_ << line << '\n';
  out_->flush();
  if (!out_->has_error()) return Status::success();
  const std::error_code failure = out_->error();
  out_->clear_error();
  return system_error(path_ + ": " + failure.message());
}

}  // namespace plimsoll
