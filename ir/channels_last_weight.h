#pragma once

#include "ir/attrs.h"
#include "ir/type.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {

// [rows, kernel..., channels] of a weight [rows, channels, kernel...]: the order of convolutions of images with
// channels last.
inline Shape with_channels_last(llvm::ArrayRef<int64_t> shape) {
  Shape last(shape.begin(), shape.end());
  if (last.size() > 2) std::rotate(last.begin() + 1, last.begin() + 2, last.end());
  return last;
}
// The other way round.
inline Shape with_channels_second(llvm::ArrayRef<int64_t> shape) {
  Shape second(shape.begin(), shape.end());
  if (second.size() > 2) std::rotate(second.begin() + 1, second.end() - 1, second.end());
  return second;
}

// What transposes a weight of that many dimensions so, and back.
inline Ints to_channels_last(size_t rank) {
  Ints perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
  return perm;
}
inline Ints to_channels_second(size_t rank) {
  Ints perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.end() - 1, perm.end());
  return perm;
}

}  // namespace plimsoll
