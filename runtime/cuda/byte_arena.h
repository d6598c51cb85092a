#pragma once

// Hands out parts of one allocation to a library that asks for memory while it works: first fit, freed neighbours grow
// together. It fails where another allocation would break a promise.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace plimsoll {

class ByteArena {
 public:
  explicit ByteArena(int64_t bytes) { free_[0] = bytes; }

  // The offset of a part, a multiple of `alignment`; none where there is no room.
  std::optional<int64_t> take(int64_t bytes) {
    bytes = (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second < bytes) continue;
      const auto [offset, room] = *at;
      free_.erase(at);
      if (room > bytes) free_[offset + bytes] = room - bytes;
      taken_[offset] = bytes;
      return offset;
    }
    return std::nullopt;
  }

  // Of an offset that take() gave and that was not given back yet.
  void give_back(int64_t offset) {
    const auto part = taken_.extract(offset);
    auto at = free_.emplace(offset, part.mapped()).first;
    if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }

  bool is_empty() const { return taken_.empty(); }

  static constexpr int64_t alignment = 512;  // what CUDA's own allocations are aligned to, at least

 private:
  std::map<int64_t, int64_t> free_, taken_;  // bytes by offset
};

}  // namespace plimsoll
