#pragma once

// No CUDA here: plans are made where there is none.

#include <cstdint>

namespace plimsoll::cuda {

// An image [batch, size[0], size[1], channels] and its phases [batch, step[0], step[1], phase_size[0], phase_size[1],
// channels], which have of every step[0] x step[1] pixels one each, and zeros where the image has ended. Arrays are
// down, then across.
struct Phases {
  int64_t batch = 1, size[2] = {1, 1}, step[2] = {1, 1}, phase_size[2] = {1, 1};
  int64_t pixel_bytes = 16;  // a multiple of 16
};

}  // namespace plimsoll::cuda
