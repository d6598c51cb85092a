#pragma once

// How many parts of a tensor have a largest number of their own before all have one: a formula that planning needs for
// the workspace.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int64_t f8_part_elements = 16384, max_f8_parts = 1024;

inline int64_t f8_parts(int64_t elements) {
  return std::clamp<int64_t>(divide_up(elements, f8_part_elements), 1, max_f8_parts);
}

}  // namespace plimsoll::cuda
