#pragma once

#include "ir/type.h"

#include <algorithm>

namespace plimsoll {

// [rows, kernel..., channels] of a weight [rows, channels, kernel...]: the order of convolutions of images with
// channels last.
inline Shape with_channels_last(llvm::ArrayRef<int64_t> shape) {
  Shape last(shape.begin(), shape.end());
  if (last.size() > 2) std::rotate(last.begin() + 1, last.begin() + 2, last.end());
  return last;
}

// Where elements of a weight are in a tensor that has it in its own order or with channels last.
class WeightOrder {
 public:
  WeightOrder(llvm::ArrayRef<int64_t> weight, bool channels_last)
      : channels_(channels_last ? weight[1] : 1), taps_(channels_last ? element_count(weight.drop_front(2)) : 1) {}

  int64_t place_of(int64_t element) const {
    const int64_t size = channels_ * taps_, in_row = element % size;
    return element - in_row + in_row % taps_ * channels_ + in_row / taps_;
  }

 private:
  int64_t channels_, taps_;
};

}  // namespace plimsoll
