#include "runtime/checkpoint/durable_files.h"

#include "llvm/Support/FileSystem.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace plimsoll {
namespace {

Status last_error(const std::string& path) {
  return system_error(path + ": " + std::generic_category().message(errno));
}

// Large enough that the calls cost nothing, small enough that a full disk is noticed soon.
constexpr size_t bytes_per_write = size_t{16} << 20;

Status write_all(int fd, const std::string& path, llvm::StringRef bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), bytes_per_write));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return last_error(path);
    bytes = bytes.drop_front(static_cast<size_t>(written));
  }
  return ::fsync(fd) == 0 ? Status::success() : last_error(path);
}

}  // namespace

Status make_folder(const std::string& path) {
  return ::mkdir(path.c_str(), 0777) == 0 ? Status::success() : last_error(path);
}

Status write_durable_file(const std::string& path, llvm::StringRef bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return last_error(path);
  Status status = write_all(fd, path, bytes);
  if (::close(fd) != 0 && !status) return last_error(path);
  return status;
}

Status sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return last_error(path);
  // Some network file systems refuse to sync a folder, and need not.
  Status status = ::fsync(fd) == 0 || errno == EINVAL ? Status::success() : last_error(path);
  ::close(fd);
  return status;
}

Status move_folder(const std::string& from, const std::string& to) {
  struct stat there;
  if (::stat(to.c_str(), &there) != 0)
    return ::rename(from.c_str(), to.c_str()) == 0 ? Status::success() : last_error(to);
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0 ? Status::success()
                                                                                         : last_error(to);
}

Status remove_folder(const std::string& path) {
  const std::error_code failure = llvm::sys::fs::remove_directories(path, /*IgnoreErrors=*/false);
  if (failure && failure != std::errc::no_such_file_or_directory) return system_error(path + ": " + failure.message());
  return Status::success();
}

}  // namespace plimsoll
