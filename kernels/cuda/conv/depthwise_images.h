#pragma once

// How depthwise convolutions of whole small images divide their work on Hopper. No CUDA here: plans are made where
// there is none.

#include "kernels/cuda/conv/depthwise_sizes.h"
#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

// Images of up to 8 x 8 pixels, as many before the convolution as behind it. A block takes 32 channels of an equal
// share of the images; a warp has 4 of them. The copy engine puts images into slots of 8, as 8 x 8 pixels with zeros
// behind the image's own, which it leaves out again where it stores them.
struct SmallImages {
  static constexpr int side = 8, slot_images = 8, warps = 8, warp_channels = 4;
  static constexpr int block_channels = warps * warp_channels, pixel_bytes = 2 * block_channels;
  static constexpr int computing_threads = warps * 32, threads = computing_threads + 128;
  // Pixels from one image of a slot to the next, with which threads that read at once are at different banks.
  static constexpr int pitch = side * side + 2;
  static constexpr int image_bytes = side * side * pixel_bytes,
                       slot_bytes = slot_images * pitch * pixel_bytes;  // of one tensor
  static constexpr int max_tap_rows = 9, max_tap_columns = 2 * side - 1;
  static constexpr int border_bytes = 1024, most_shared_bytes = 227 << 10, max_slots = 8;
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int channels, channel_blocks;
  int image[2], kernel[2], pad[2];
  int tap_rows;  // that the kernel is made for
  int batch, splits, slots;
  uint32_t all_bytes = 0x3210;  // a selector of PRMT

  constexpr int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  // Of the busiest block.
  constexpr int64_t most_images() const { return divide_up(batch, splits); }
  constexpr int64_t most_slots() const { return slots_of(splits); }
  // How often multiprocessors have a block one after the other.
  constexpr int64_t rounds() const { return divide_up(blocks(), processors); }
  constexpr int taps() const { return kernel[0] * kernel[1]; }

 protected:
  constexpr int64_t slots_of(int parts) const { return divide_up(divide_up(batch, parts), slot_images); }
  SmallImages(const ConvolutionSizes& c, bool gradient)
      : channels(c.groups),
        channel_blocks(static_cast<int>(divide_up(channels, block_channels))),
        batch(static_cast<int>(c.batch)) {
    for (int d = 0; d < 2; ++d) {
      image[d] = c.x[d], kernel[d] = c.kernel[d];
      pad[d] = gradient ? kernel[d] - 1 - c.pad[d] : c.pad[d];
    }
    tap_rows = std::max(kernel[0], 3);
    splits = static_cast<int>(std::clamp<int64_t>(processors / channel_blocks, 1, std::max<int64_t>(batch, 1)));
  }
  void fill_slots(int tensors, int64_t others) {
    const int64_t fit = (most_shared_bytes - border_bytes - others) / (int64_t{tensors} * slot_bytes + 16);
    slots = static_cast<int>(std::clamp<int64_t>(most_slots(), 1, std::min<int64_t>(fit, max_slots)));
  }
};

// conv and conv_dx: results take the place of the pixels that they are made of, of which a warp has all that it needs
// in registers. Weights lie behind the slots, each row of taps between zeros and twice, once an element further, so
// that any two neighbours are a word.
struct DepthwiseImages : SmallImages {
  static constexpr int row_elements = 2 * side, row_bytes = 2 * row_elements * 2;

  bool gradient;

  DepthwiseImages(const ConvolutionSizes& c, bool is_gradient) : SmallImages(c, is_gradient), gradient(is_gradient) {
    fill_slots(1, weight_bytes());
  }
  constexpr int weight_bytes() const { return block_channels * tap_rows * row_bytes; }
  constexpr int64_t shared_bytes() const { return border_bytes + int64_t{slots} * (slot_bytes + 16) + weight_bytes(); }
};

// conv_dw: a slot has images of x and of dy. In the end the sums of all pairs of columns lie there. Blocks of the same
// channels are a cluster and add their sums up where that leaves the busiest at most two slots more; else they leave
// parts.
struct DepthwiseImageWeights : SmallImages {
  static constexpr int sums_pitch = side * side + 4;                            // floats of a channel's row of taps
  static constexpr int max_cluster = 8, max_clusters = 14, max_more_slots = 2;  // clusters that fit on a card

  bool joined;

  explicit DepthwiseImageWeights(const ConvolutionSizes& c) : SmallImages(c, false) {
    const int of_cluster = static_cast<int>(std::min<int64_t>(splits, max_cluster));
    joined = of_cluster == 1 ||
             (channel_blocks <= max_clusters && slots_of(of_cluster) <= slots_of(splits) + max_more_slots);
    if (joined) splits = of_cluster;
    fill_slots(2, 0);
  }
  constexpr int64_t sums_bytes() const { return int64_t{block_channels} * tap_rows * sums_pitch * 4; }
  // A block's sums by taps lie behind those by columns.
  constexpr int64_t shared_bytes() const {
    return border_bytes + std::max(int64_t{slots} * (2 * slot_bytes + 16), sums_bytes() + block_channels * taps() * 4);
  }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return joined ? 0 : splits * c.weights() * 4; }
};

// Images as large behind the convolution as before it, without strides and dilations, in a 16-bit float; as many rows
// of zeros above as below.
inline bool fits_depthwise_images(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % unit_channels != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.dilation[d] != 1 || c.x[d] > SmallImages::side || c.x[d] != c.y[d]) return false;
  return c.kernel[0] <= SmallImages::max_tap_rows && c.kernel[0] % 2 == 1 && c.pad[0] == c.kernel[0] / 2 &&
         c.kernel[1] <= SmallImages::max_tap_columns && c.pad[1] < c.kernel[1];
}

}  // namespace plimsoll::cuda
