#pragma once

#include <cstdint>

namespace plimsoll {

constexpr int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }
constexpr int64_t round_up(int64_t n, int64_t multiple) { return divide_up(n, multiple) * multiple; }

}  // namespace plimsoll
