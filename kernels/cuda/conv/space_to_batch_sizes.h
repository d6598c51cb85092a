#pragma once

// No CUDA here: plans are made where there is none.

#include <cstdint>

namespace plimsoll::cuda {

// An image [batch, size[0], size[1], channels] and its sub-images [batch, step[0], step[1], sub_size[0], sub_size[1],
// channels]: each takes one of every step[0] x step[1] pixels, and zeros where the image has ended. Arrays are down,
// then across.
struct SpaceToBatch {
  int64_t batch = 1, size[2] = {1, 1}, step[2] = {1, 1}, sub_size[2] = {1, 1};
  int64_t pixel_bytes = 16;  // a multiple of 16
};

}  // namespace plimsoll::cuda
