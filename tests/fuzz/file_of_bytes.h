#pragma once

// Bytes as a file for readers that take a path: in memory alone, so that a fuzzer is not slowed by a disk.

#include "llvm/ADT/StringRef.h"

#include <sys/mman.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

// A folder in memory for readers that look at names; it is gone with the object.
class FolderOfFiles {
 public:
  FolderOfFiles() {
    char name[] = "/dev/shm/plimsoll-fuzz-XXXXXX";
    if (!mkdtemp(name)) std::abort();
    path_ = name;
  }
  FolderOfFiles(const FolderOfFiles&) = delete;
  ~FolderOfFiles() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  // Returns the file's path.
  std::string add(const std::string& name, llvm::StringRef content) const {
    std::ofstream out(path_ + "/" + name, std::ios::binary);
    if (!out.write(content.data(), static_cast<std::streamsize>(content.size()))) std::abort();
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

// An answer or an error in words: what matters is that there is one.
template <typename Answer>
void take(Answer answer) {
  if (!answer) consumeError(answer.takeError());
}

}  // namespace plimsoll::testing
