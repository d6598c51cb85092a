#pragma once

// A file read by position: no mapping, so pages of large weight files do not count as ours.

#include "ir/support/status.h"

#include "llvm/ADT/StringRef.h"

#include <cstdint>

namespace plimsoll {

class InputFile {
 public:
  static Result<InputFile> open(llvm::StringRef path);
  InputFile(InputFile&& other) noexcept : path_(std::move(other.path_)), bytes_(other.bytes_), fd_(other.fd_) {
    other.fd_ = -1;
  }
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // Exactly `count` bytes from `offset`; a file that ends earlier is an error.
  Status read_at(int64_t offset, void* out, int64_t count) const;

 private:
  InputFile(std::string path, int64_t bytes, int fd) : path_(std::move(path)), bytes_(bytes), fd_(fd) {}
  std::string path_;
  int64_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace plimsoll
