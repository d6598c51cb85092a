#pragma once

// Philox4x32-10 (Salmon et al. 2011) on the device: the numbers of the compiler's own generator.

#include "kernels/cuda/elementwise/random.h"

namespace plimsoll::cuda {

struct PhiloxBlock {
  uint32_t lanes[4];
};

// The generator of a stream, whose round keys are made once for any number of blocks.
class Philox {
 public:
  __device__ explicit Philox(const RandomStream& stream)
      : step_(static_cast<uint32_t>(stream.seed_and_step[1])), id_(stream.id) {
    const auto seed = static_cast<uint64_t>(stream.seed_and_step[0]);
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      low_[round] = static_cast<uint32_t>(seed) + static_cast<uint32_t>(round) * 0x9E3779B9;
      high_[round] = static_cast<uint32_t>(seed >> 32) + static_cast<uint32_t>(round) * 0xBB67AE85;
    }
  }

  // Of the stream's blocks from 0 on.
  __device__ PhiloxBlock operator()(int64_t index) const {
    const auto block = static_cast<uint64_t>(index);
    uint32_t a = static_cast<uint32_t>(block), b = static_cast<uint32_t>(block >> 32), c = step_, d = id_;
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
      a = static_cast<uint32_t>(second >> 32) ^ b ^ low_[round];
      b = static_cast<uint32_t>(second);
      c = static_cast<uint32_t>(first >> 32) ^ d ^ high_[round];
      d = static_cast<uint32_t>(first);
    }
    return {{a, b, c, d}};
  }

 private:
  static constexpr int rounds = 10;

  uint32_t step_, id_, low_[rounds], high_[rounds];
};

// Block `index` of what the stream has from its first block on.
__device__ inline PhiloxBlock philox(const RandomStream& stream, int64_t index) {
  return Philox(stream)(stream.first_block + index);
}

}  // namespace plimsoll::cuda
