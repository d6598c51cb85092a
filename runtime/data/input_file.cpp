#include "runtime/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

namespace plimsoll {

Result<InputFile> InputFile::open(llvm::StringRef path) {
  std::string name = path.str();
  int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a fifo would wait for its writer
  if (fd < 0) return system_error(path + ": " + std::strerror(errno));
  struct stat facts;
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(fd);
    return system_error(path + ": not a regular file");
  }
  return InputFile(std::move(name), facts.st_size, fd);
}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read_at(int64_t offset, void* out, int64_t count) const {
  auto* at = static_cast<char*>(out);
  while (count > 0) {
    ssize_t got = ::pread(fd_, at, static_cast<size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path_ + ": " + std::strerror(errno));
    if (got == 0)
      return model_error(path_ + ": ends " + llvm::Twine(count) + " bytes early, at byte " + llvm::Twine(offset));
    at += got;
    offset += got;
    count -= got;
  }
  return Status::success();
}

}  // namespace plimsoll
