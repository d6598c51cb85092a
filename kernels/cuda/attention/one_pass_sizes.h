#pragma once

namespace plimsoll::cuda {

// The gradient of attention in one pass takes tiles of so many rows, and heads of up to so many elements.
inline constexpr int one_pass_rows = 64, one_pass_depth = 64;

}  // namespace plimsoll::cuda
