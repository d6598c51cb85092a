#pragma once

namespace plimsoll {

// A row of attention whose lse is below this is closed whole, by a mask of large finite numbers: its result is the mean
// of the values. Rounding leaves nothing of the number of columns in such an lse, so the row passes no gradient.
inline constexpr float closed_lse = -1e6f;

}  // namespace plimsoll
