#include "runtime/checkpoint/checkpoint_folder.h"

#include "ir/support/read_file.h"
#include "ir/support/strings.h"
#include "runtime/checkpoint/durable_files.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

namespace plimsoll {
namespace {

namespace path = llvm::sys::path;

constexpr llvm::StringLiteral name_prefix = "step-";
constexpr llvm::StringLiteral part_suffix = ".part";  // of what is being written or removed

std::string name_of(int64_t step) {
  const std::string digits = std::to_string(step);
  return name_prefix.str() + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

std::string inside(llvm::StringRef folder, llvm::StringRef name) {
  llvm::SmallString<128> joined(folder);
  path::append(joined, name);
  return joined.str().str();
}

Status check_file(llvm::StringRef folder, const CheckpointFile& expected, Check check) {
  const std::string file = inside(folder, expected.name);
  uint64_t size = 0;
  if (std::error_code failure = llvm::sys::fs::file_size(file, size))
    return system_error(file + ": " + failure.message());
  if (static_cast<int64_t>(size) != expected.bytes)
    return model_error(file + ": has " + llvm::Twine(size) + " bytes, was written with " + llvm::Twine(expected.bytes));
  if (check == Check::Sizes) return Status::success();
  Result<std::unique_ptr<llvm::MemoryBuffer>> bytes = read_file(file);
  if (!bytes) return bytes.takeError();
  if (llvm::xxHash64((*bytes)->getBuffer()) != expected.xxh64) return model_error(file + ": differs from its checksum");
  return Status::success();
}

// Names in a folder, sorted.
Result<std::vector<std::string>> names_in(llvm::StringRef folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (llvm::sys::fs::directory_iterator at(folder, failure), end; at != end && !failure; at.increment(failure))
    names.push_back(path::filename(at->path()).str());
  if (failure) return system_error(folder + ": " + failure.message());
  llvm::sort(names);
  return names;
}

bool is_checkpoint_name(llvm::StringRef name) {
  int64_t step = 0;
  return name.consume_front(name_prefix) && !name.empty() && !name.getAsInteger(10, step);
}

bool is_part_name(llvm::StringRef name) {
  return name.consume_front(".") && name.consume_back(part_suffix) && is_checkpoint_name(name);
}

struct Listed {
  std::vector<Checkpoint> checkpoints;  // oldest first
  std::vector<std::string> unreadable;  // the reasons
};

Result<Listed> list(llvm::StringRef folder) {
  Result<std::vector<std::string>> names = names_in(folder);
  if (!names) return names.takeError();
  Listed listed;
  for (const std::string& name : *names) {
    if (!is_checkpoint_name(name)) continue;
    Result<Checkpoint> found = open_checkpoint(inside(folder, name), Check::Sizes);
    if (found)
      listed.checkpoints.push_back(std::move(*found));
    else
      listed.unreadable.push_back(take_diag(found.takeError()).text());
  }
  llvm::sort(listed.checkpoints,
             [](const Checkpoint& a, const Checkpoint& b) { return a.record.sequence < b.record.sequence; });
  return listed;
}

}  // namespace

Result<Checkpoint> open_checkpoint(llvm::StringRef folder, Check check) {
  const std::string file = inside(folder, checkpoint_record_file);
  Result<std::unique_ptr<llvm::MemoryBuffer>> text = read_file(file);
  if (!text) return text.takeError();
  Result<CheckpointRecord> record = parse_checkpoint_record((*text)->getBuffer());
  if (!record) return in_context(file, record.takeError());
  for (const CheckpointFile& expected : record->files)
    if (Status s = check_file(folder, expected, check)) return s;
  return Checkpoint{folder.str(), std::move(*record)};
}

std::string path_of_checkpoint(llvm::StringRef folder, int64_t step) { return inside(folder, name_of(step)); }

Result<NewestCheckpoint> newest_checkpoint(llvm::StringRef folder) {
  NewestCheckpoint newest;
  if (!llvm::sys::fs::is_directory(folder)) return newest;
  Result<Listed> listed = list(folder);
  if (!listed) return listed.takeError();
  newest.skipped = std::move(listed->unreadable);
  for (const Checkpoint& candidate : llvm::reverse(listed->checkpoints)) {
    Result<Checkpoint> whole = open_checkpoint(candidate.path, Check::Checksums);
    if (whole) {
      newest.found = std::move(*whole);
      break;
    }
    newest.skipped.push_back(take_diag(whole.takeError()).text());
  }
  return newest;
}

Result<CheckpointFolder> CheckpointFolder::open(llvm::StringRef folder) {
  if (std::error_code failure = llvm::sys::fs::create_directories(folder))
    return system_error(folder + ": " + failure.message());
  if (Status s = sync_folder(inside(folder, ".."))) return s;
  CheckpointFolder opened;
  opened.path_ = folder.str();
  Result<FolderLock> lock = FolderLock::take(folder);
  if (!lock) return lock.takeError();
  opened.lock_ = std::move(*lock);
  Result<std::vector<std::string>> names = names_in(folder);
  if (!names) return names.takeError();
  for (const std::string& name : *names)
    if (is_part_name(name))
      if (Status s = remove_folder(inside(folder, name))) return s;
  Result<Listed> listed = list(folder);
  if (!listed) return listed.takeError();
  opened.checkpoints_ = std::move(listed->checkpoints);
  return opened;
}

Status CheckpointFolder::write(CheckpointRecord record, llvm::ArrayRef<FileBytes> files) {
  const std::string name = name_of(record.step), part = inside(path_, "." + name + part_suffix.str());
  const std::string target = inside(path_, name);
  auto write_all = [&]() -> Status {
    if (Status s = make_folder(part)) return s;
    for (const FileBytes& file : files) {
      if (Status s = write_durable_file(inside(part, file.name), file.bytes)) return s;
      record.files.push_back({file.name.str(), static_cast<int64_t>(file.bytes.size()), llvm::xxHash64(file.bytes)});
    }
    if (Status s = write_durable_file(inside(part, checkpoint_record_file), to_json(record))) return s;
    if (Status s = sync_folder(part)) return s;
    if (Status s = move_folder(part, target)) return s;
    return sync_folder(path_);
  };
  Status written = write_all();
  // What is left under the temporary name is a part of this checkpoint, or the one that it replaced.
  Status cleared = remove_folder(part);
  if (written) {
    llvm::consumeError(std::move(cleared));
    return written;
  }
  llvm::erase_if(checkpoints_, [&](const Checkpoint& old) { return old.path == target; });
  checkpoints_.push_back({target, std::move(record)});
  return cleared;
}

Status CheckpointFolder::remove_old(int64_t keep, llvm::ArrayRef<int64_t> staying) {
  auto left = static_cast<int64_t>(checkpoints_.size());
  for (size_t i = 0; i + 1 < checkpoints_.size() && left > keep;) {
    const Checkpoint& old = checkpoints_[i];
    if (llvm::is_contained(staying, old.record.step)) {
      ++i;
      continue;
    }
    // Renamed first, so that nobody ever finds half of it under its name.
    const std::string part = inside(path_, "." + name_of(old.record.step) + part_suffix.str());
    if (Status s = move_folder(old.path, part)) return s;
    checkpoints_.erase(checkpoints_.begin() + static_cast<int64_t>(i));
    --left;
    if (Status s = remove_folder(part)) return s;
  }
  return Status::success();
}

}  // namespace plimsoll
