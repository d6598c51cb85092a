#pragma once

#include <cstdint>

namespace plimsoll {

// Up to the next border of an arena.
constexpr int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace plimsoll
