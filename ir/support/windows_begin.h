#pragma once

#include <cstdint>

namespace plimsoll {

// No arena is as high. Offsets from here on are those of windows, which show pages of an arena side by side.
inline constexpr int64_t windows_begin = int64_t{1} << 40;

}  // namespace plimsoll
