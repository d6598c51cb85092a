#include "ir/support/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <utility>

namespace plimsoll {

Status lock_against_writers(int fd, llvm::StringRef path) {
  // A file system without locks gives another error, and runs there are trusted to keep apart.
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return Status::success();
  return system_error(path + ": another run writes here");
}

Result<FolderLock> FolderLock::take(llvm::StringRef folder) {
  FolderLock lock;
  lock.fd_ = ::open(folder.str().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.fd_ < 0) return system_error(folder + ": " + std::generic_category().message(errno));
  if (Status s = lock_against_writers(lock.fd_, folder)) return s;
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace plimsoll
