#pragma once

#include <cstdint>

namespace plimsoll {

// An update with {norms} gives the 2-norm of each so many consecutive elements of its gradient; the norm of these is
// the gradient's.
inline constexpr int64_t update_block = 1024;

}  // namespace plimsoll
