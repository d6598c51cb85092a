#pragma once

// Which of several layouts needs least, found without searching all of them.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace plimsoll {

struct LayoutNeed {
  bool is_above_host = false;  // worse than any number of bytes
  int64_t bytes = 0;
  friend auto operator<=>(const LayoutNeed&, const LayoutNeed&) = default;
};

// Share of the bytes that a search reckoned with, below which the bytes that are alive never were.
inline constexpr double min_live_share = 0.97;

// The first of those that need least; none where all need `enough_bytes` or more. `place` does so roughly and `finish`
// as well as can be, each for two layouts at once: `place` for those that may need least by their `live_bytes`, below
// which no layout is, and these are asked for where `reckoned_bytes` allow for it; `finish` for those that are at most
// 3 % above the least and may still need less than it, the closest first.
std::optional<size_t> least_layout(llvm::ArrayRef<int64_t> reckoned_bytes, int64_t enough_bytes,
                                   llvm::function_ref<int64_t(size_t)> live_bytes,
                                   llvm::function_ref<LayoutNeed(size_t)> place,
                                   llvm::function_ref<LayoutNeed(size_t)> finish);

}  // namespace plimsoll
