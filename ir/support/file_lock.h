#pragma once

// Keeps a second run from writing into a file or folder. Locks end with the process at the latest, however it ends.

#include "ir/support/status.h"

namespace plimsoll {

// Locks an open file or folder for as long as `fd` is open. Fails where another writer has it: "PATH: another run
// writes here".
Status lock_against_writers(int fd, llvm::StringRef path);

// A lock on a folder that exists.
class FolderLock {
 public:
  static Result<FolderLock> take(llvm::StringRef folder);
  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace plimsoll
