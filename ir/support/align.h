#pragma once

#include <cstdint>

namespace plimsoll {

// Up to the next border of an arena.
constexpr int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Borders that kernels may count on: where tensors start, and the parts of a workspace.
constexpr int64_t align_to_tensor(int64_t bytes) { return align_up(bytes, 256); }

}  // namespace plimsoll
