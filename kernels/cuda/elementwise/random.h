#pragma once

// Random numbers by position: Philox4x32 (Salmon et al. 2011), the same numbers on every backend. Element i takes lane
// i % 4 of block first_block + i / 4 of its node's stream, and dropout 16 bits for each; nothing is stored, so a mask
// can be made again anywhere.

#include "kernels/dropout.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct RandomStream {
  const int64_t* seed_and_step;  // two numbers in device memory
  uint32_t id;
  int64_t first_block = 0;
};

// y = x * factor where an element's number is kept, else 0; y may be x. Any float but F8.
[[nodiscard]] cudaError_t dropout(const RandomStream& stream, const ElementDropout& dropout, Scalar type, void* y,
                                  const void* x, int64_t n, cudaStream_t on);

// The same of x [batch, positions, channels], whose elements draw in the order of [batch, channels, positions].
struct ChannelsLastShape {
  int64_t batch, positions, channels;
};
[[nodiscard]] cudaError_t dropout_channels_last(const RandomStream& stream, const ElementDropout& dropout, Scalar type,
                                                void* y, const void* x, const ChannelsLastShape& shape,
                                                cudaStream_t on);

// Uniform in [low, high).
[[nodiscard]] cudaError_t random_uniform(const RandomStream& stream, double low, double high, Scalar type, void* y,
                                         int64_t n, cudaStream_t on);
// Follows Box and Muller (1958): lanes 0 and 1 make one pair, lanes 2 and 3 the other.
[[nodiscard]] cudaError_t random_normal(const RandomStream& stream, double mean, double deviation, Scalar type, void* y,
                                        int64_t n, cudaStream_t on);

}  // namespace plimsoll::cuda
