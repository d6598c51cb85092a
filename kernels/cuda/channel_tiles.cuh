#pragma once

// Walks over [batch, channels, inner] and [batch, inner, channels] as a matrix whose rows repeat the channels: a thread
// owns one access of a row, hence its channels, and goes down the rows.

#include "kernels/cuda/partials.h"
#include "kernels/cuda/rows.cuh"

namespace plimsoll::cuda {

enum class ChannelOrder : uint8_t { First, Last };

struct ChannelMatrix {
  int64_t rows, columns;     // columns in accesses of `length` elements
  int64_t accesses_a_plane;  // with channels first
  int64_t channels;

  ChannelMatrix(const ChannelShape& shape, int64_t length)
      : rows(shape.channels_last ? shape.per_channel() : shape.batch),
        columns(shape.channels_last ? shape.channels / length : shape.channels * (shape.inner / length)),
        accesses_a_plane(shape.inner / length), channels(shape.channels) {}
};

// The channels of one access: as many as it has elements when they come last, otherwise one.
template <ChannelOrder order, int n>
struct ChannelsOf {
  static constexpr int count = order == ChannelOrder::Last ? n : 1;
  int64_t first;

  __device__ ChannelsOf(const ChannelMatrix& matrix, int64_t column)
      : first(order == ChannelOrder::Last
                  ? column * n
                  : static_cast<uint32_t>(column) / static_cast<uint32_t>(matrix.accesses_a_plane)) {}
  __device__ void load(float (&to)[count], const float* of_channels) const {
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = of_channels[first + i];
  }
};

// Calls body(integral constant of the access length, integral constant of the order).
template <typename T, typename Body>
void with_channel_layout(const ChannelShape& shape, Body body) {
  constexpr int n = vector_length<T>;
  const bool whole = access_length(shape, sizeof(T)) == n;
  using Whole = std::integral_constant<int, n>;
  using Single = std::integral_constant<int, 1>;
  using First = std::integral_constant<ChannelOrder, ChannelOrder::First>;
  using Last = std::integral_constant<ChannelOrder, ChannelOrder::Last>;
  if (shape.channels_last)
    whole ? body(Whole(), Last()) : body(Single(), Last());
  else
    whole ? body(Whole(), First()) : body(Single(), First());
}

}  // namespace plimsoll::cuda
