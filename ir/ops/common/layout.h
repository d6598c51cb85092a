#pragma once

// The dimension that counts channels is an attribute. Ops on [N, C, spatial...] take {channels_last}: then those
// tensors are [N, spatial..., C], and weights of convolutions [M, kernel..., C/groups]. Values per channel stay as they
// are.

#include "ir/ops/common/support.h"

#include <algorithm>

namespace plimsoll {

inline constexpr AttrSpec channels_last_attr{"channels_last", 0};

inline bool is_channels_last(const Attrs& attrs) { return attrs.get_int("channels_last") != 0; }

// The dimension of a tensor of that rank that counts channels.
inline size_t channel_dim(const Attrs& attrs, size_t rank) { return is_channels_last(attrs) ? rank - 1 : 1; }

// A shape in the op's layout as [N, C, spatial...].
inline Shape channels_first(const Attrs& attrs, llvm::ArrayRef<int64_t> shape) {
  Shape first(shape.begin(), shape.end());
  if (is_channels_last(attrs) && first.size() > 2) std::rotate(first.begin() + 1, first.end() - 1, first.end());
  return first;
}

// [N, C, spatial...] in the op's layout.
inline Shape in_layout(const Attrs& attrs, Shape shape) {
  if (is_channels_last(attrs) && shape.size() > 2) std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  return shape;
}

// The flat index of position p in channel c of sample n.
class ChannelPlaces {
 public:
  // `shape` is [N, C, spatial...] whatever the layout.
  ChannelPlaces(const Attrs& attrs, llvm::ArrayRef<int64_t> shape) {
    const int64_t positions = element_count(shape.drop_front(2));
    sample_ = shape[1] * positions;
    channel_ = is_channels_last(attrs) ? 1 : positions;
    position_ = is_channels_last(attrs) ? shape[1] : 1;
  }

  int64_t at(int64_t n, int64_t c, int64_t p) const { return n * sample_ + c * channel_ + p * position_; }

 private:
  int64_t sample_, channel_, position_;
};

}  // namespace plimsoll
