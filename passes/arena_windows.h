#pragma once

// The windows of a device's arena (ir/plan/windows.h) while functions are laid out one after the other.

#include "ir/plan/plan.h"
#include "passes/place/place_buffers.h"

namespace plimsoll {

class ArenaWindows {
 public:
  ArenaWindows() = default;
  // Those that an arena has.
  explicit ArenaWindows(const Arena& arena) : page_bytes_(arena.page_bytes), windows_(arena.windows) {}

  // Adds the windows of a placement behind those that there are. Returns how many bytes further on they are than in the
  // placement.
  int64_t add(const BufferPlacement& placed);
  // Gives them to an arena, and the device a reserve for them, if there are any.
  void put_into(Arena& arena, DeviceDescription& device) const;

 private:
  int64_t page_bytes_ = 0;
  std::vector<PageWindow> windows_;
};

}  // namespace plimsoll
