#pragma once

// What a run needs of this machine's disks for all that it writes (of its memory, see host_memory.h): paths and room.
// It is looked at before the first step, so that no run of hours ends for the lack of it.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace plimsoll {

struct DiskNeed {
  std::string what;  // "4 checkpoints of 12 MiB"
  std::string path;  // of a file or folder, which need not exist
  int64_t bytes = 0;
};

// An error where needs on one file system are more together than it has free: it names them, their sum and what is
// free.
Status check_disk(llvm::ArrayRef<DiskNeed> needs);

// Whether a file that grows as the run goes can be written, and whether a folder can be made or has room for files.
// They make nothing. Errors name the path.
Status check_can_append(llvm::StringRef path);
Status check_can_fill(llvm::StringRef folder);

}  // namespace plimsoll
