#pragma once

// A folder of checkpoints, each a folder "step-000123" of its own. A checkpoint appears under its name only when all
// its bytes are on the disk, whatever ends the program or the machine before.

#include "ir/support/file_lock.h"
#include "runtime/checkpoint/record.h"

#include <memory>
#include <optional>

namespace plimsoll {

struct Checkpoint {
  std::string path;
  CheckpointRecord record;
};

// Reads the record of a checkpoint and compares sizes; with `checksums` also every byte. Errors name the file.
enum class Check : uint8_t { Sizes, Checksums };
Result<Checkpoint> open_checkpoint(llvm::StringRef path, Check check);

// Where a folder has the checkpoint of a step.
std::string path_of_checkpoint(llvm::StringRef folder, int64_t step);

// The newest whole checkpoint of a folder, and those that are newer and not whole, each with the reason.
struct NewestCheckpoint {
  std::optional<Checkpoint> found;
  std::vector<std::string> skipped;  // "step-000123: ..."
};
Result<NewestCheckpoint> newest_checkpoint(llvm::StringRef folder);

// A file that is written: its name in the folder, and its bytes.
struct FileBytes {
  llvm::StringRef name, bytes;
};

class CheckpointFolder {
 public:
  // Makes the folder, locks it against other runs, and removes the parts of checkpoints that were not finished.
  static Result<CheckpointFolder> open(llvm::StringRef path);

  const std::string& path() const { return path_; }
  // By their records alone, oldest first. What cannot be read is not in it and is never removed.
  llvm::ArrayRef<Checkpoint> checkpoints() const { return checkpoints_; }
  int64_t next_sequence() const { return checkpoints_.empty() ? 1 : checkpoints_.back().record.sequence + 1; }

  // Writes a checkpoint and makes it durable; fills in the record's files. One of the same step is replaced in one
  // move. After a failure the folder holds what it held before.
  Status write(CheckpointRecord record, llvm::ArrayRef<FileBytes> files);
  // Removes the oldest until at most `keep` are left; the newest and those of the steps `staying` are not removed.
  Status remove_old(int64_t keep, llvm::ArrayRef<int64_t> staying = {});

 private:
  std::string path_;
  FolderLock lock_;
  std::vector<Checkpoint> checkpoints_;
};

}  // namespace plimsoll
