#include "frontend/driver/machine_needs.h"

#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

namespace plimsoll {
namespace {

// The folder on the disk that holds the path, or will hold it once it is made.
std::string folder_there(llvm::StringRef path) {
  llvm::SmallString<128> there(path);
  llvm::sys::fs::make_absolute(there);
  while (!there.empty() && !llvm::sys::fs::is_directory(there)) llvm::sys::path::remove_filename(there);
  return there.str().str();
}

std::optional<uint64_t> file_system_of(const std::string& folder) {
  llvm::sys::fs::UniqueID id;
  if (llvm::sys::fs::getUniqueID(folder, id)) return std::nullopt;
  return id.getDevice();
}

std::string list_needs(llvm::ArrayRef<DiskNeed> needs) {
  std::string list;
  for (const DiskNeed& need : needs)
    if (need.bytes > 0) list += (list.empty() ? "" : ", ") + need.what + " " + format_bytes(need.bytes);
  return list;
}

Status check_access(llvm::StringRef said, const std::string& path) {
  if (::access(path.c_str(), W_OK) == 0) return Status::success();
  return system_error(said + ": " + std::generic_category().message(errno));
}

}  // namespace

Status check_can_append(llvm::StringRef path) {
  if (llvm::sys::fs::is_directory(path)) return system_error(path + ": is a folder");
  if (llvm::sys::fs::exists(path)) return check_access(path, path.str());
  const std::string folder = llvm::sys::path::parent_path(path).str();
  return check_access(path, folder.empty() ? "." : folder);
}

Status check_can_fill(llvm::StringRef folder) {
  llvm::SmallString<128> there(folder);
  llvm::sys::fs::make_absolute(there);
  while (!there.empty() && !llvm::sys::fs::exists(there)) llvm::sys::path::remove_filename(there);
  if (!llvm::sys::fs::is_directory(there)) return system_error(folder + ": " + there + " is no folder");
  return check_access(folder, there.str().str());
}

Status check_disk(llvm::ArrayRef<DiskNeed> needs) {
  std::map<uint64_t, std::vector<DiskNeed>> by_file_system;
  for (const DiskNeed& need : needs)
    if (const std::optional<uint64_t> id = file_system_of(folder_there(need.path))) by_file_system[*id].push_back(need);
  for (const auto& [id, here] : by_file_system) {
    const std::string folder = folder_there(here.front().path);
    llvm::ErrorOr<llvm::sys::fs::space_info> space = llvm::sys::fs::disk_space(folder);
    if (!space) continue;
    int64_t bytes = 0;
    for (const DiskNeed& need : here) bytes += need.bytes;
    if (bytes > 0 && static_cast<uint64_t>(bytes) > space->available)
      return system_error("the run writes " + format_bytes(bytes) + " to the disk of " + folder + " (" +
                          list_needs(here) + "), " + format_bytes(static_cast<int64_t>(space->available)) +
                          " are free");
  }
  return Status::success();
}

}  // namespace plimsoll
