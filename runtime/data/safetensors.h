#pragma once

// The safetensors format: a JSON header with names, dtypes, shapes and offsets, then raw bytes.

#include "ir/type.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MemoryBuffer.h"

#include <functional>
#include <map>
#include <vector>

namespace plimsoll {

struct TensorEntry {
  std::string name;
  Type type;
  int64_t offset = 0;  // of its bytes in the file
};

// A file opened for reading. Bytes are read when a tensor is asked for, so files larger than memory are fine.
class SafetensorsFile {
 public:
  // Checks the whole header: sizes against shapes, offsets against the file, overlaps.
  static Result<SafetensorsFile> open(llvm::StringRef path);

  llvm::ArrayRef<TensorEntry> entries() const { return entries_; }  // sorted by name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(llvm::StringRef name) const;
  // Copies entry.type.bytes() bytes to `out`.
  Status read(const TensorEntry& entry, void* out) const;
  // Copies `count` elements from `first` on, and reads no others.
  Status read_range(const TensorEntry& entry, int64_t first, int64_t count, void* out) const;

 private:
  std::string path_;
  std::vector<TensorEntry> entries_;
  llvm::StringMap<size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// What a file has before its tensors, which follow one after the other in the order of `entries`. Their offsets are not
// used.
std::string safetensors_header(llvm::ArrayRef<TensorEntry> entries,
                               const std::map<std::string, std::string>& metadata = {});

// Writes `entries` in their order under the final name only once complete. `read` copies the bytes of one entry; its
// offset is not used.
Status write_safetensors(llvm::StringRef path, llvm::ArrayRef<TensorEntry> entries,
                         const std::function<Status(const TensorEntry& entry, void* out)>& read,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace plimsoll
