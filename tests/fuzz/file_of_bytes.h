#pragma once

// Bytes as a file for readers that take a path: in memory alone, so that a fuzzer is not slowed by a disk.

#include <sys/mman.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace plimsoll::testing {

class FileOfBytes {
 public:
  FileOfBytes(const uint8_t* bytes, size_t size) : fd_(memfd_create("input", 0)) {
    if (fd_ < 0 || write(fd_, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  }
  FileOfBytes(const FileOfBytes&) = delete;
  ~FileOfBytes() { close(fd_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// An answer or an error in words: what matters is that there is one.
template <typename Answer>
void take(Answer answer) {
  if (!answer) consumeError(answer.takeError());
}

}  // namespace plimsoll::testing
