#include "passes/arena_windows.h"

#include "ir/plan/windows.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

int64_t ArenaWindows::add(const BufferPlacement& placed) {
  if (placed.windows.empty()) return 0;
  page_bytes_ = placed.page_bytes;
  int64_t end = windows_begin;
  if (!windows_.empty())
    end = windows_.back().offset + static_cast<int64_t>(windows_.back().pages.size()) * page_bytes_;
  const int64_t further = end - windows_begin;
  for (const std::vector<int64_t>& pages : placed.windows) {
    windows_.push_back({end, pages});
    end += static_cast<int64_t>(pages.size()) * page_bytes_;
  }
  return further;
}

void ArenaWindows::put_into(Arena& arena, DeviceDescription& device) const {
  constexpr llvm::StringLiteral name = "windows";
  arena.page_bytes = page_bytes_;
  arena.windows = windows_;
  llvm::erase_if(device.reserves, [&](const Reserve& reserve) { return reserve.name == name; });
  if (!windows_.empty()) device.reserves.push_back({name.str(), device.windows_reserve_bytes()});
}

}  // namespace plimsoll
