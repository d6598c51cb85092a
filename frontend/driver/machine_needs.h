#pragma once

// What a run needs of this machine besides its device: disk for all that it writes, and host memory for its arenas, its
// data and its checkpoints. It is looked at before the first step, so that no run of hours ends for the lack of it.

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

struct MemoryNeed {
  std::string what;  // "batches read ahead"
  int64_t bytes = 0;
};

// An error where the sum is above what the process may still take: it names the needs, the sum and the limit.
Status check_host_memory(llvm::ArrayRef<MemoryNeed> needs);

}  // namespace plimsoll
