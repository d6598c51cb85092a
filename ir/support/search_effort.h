#pragma once

// How much a search may do is asked for in seconds of one core of 2023 and counted in elementary steps, so that results
// never depend on a clock. A step of each search takes another time, which was measured.

#include <cstdint>

namespace plimsoll {

inline constexpr double order_steps_per_second = 100e6;
inline constexpr double remat_steps_per_second = 200e6;
inline constexpr double placement_steps_per_second = 300e6;

inline int64_t steps_for(double seconds, double steps_per_second) {
  return static_cast<int64_t>(seconds * steps_per_second);
}

}  // namespace plimsoll
