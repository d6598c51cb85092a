#pragma once

// Philox4x32-10 (Salmon et al. 2011) on the device: the numbers of the compiler's own generator.

#include "kernels/cuda/elementwise/random.h"

namespace plimsoll::cuda {

struct PhiloxBlock {
  uint32_t lanes[4];
};

// Block `index` of what the stream has from its first block on.
__device__ inline PhiloxBlock philox(const RandomStream& stream, int64_t index) {
  const auto block = static_cast<uint64_t>(stream.first_block + index);
  const auto seed = static_cast<uint64_t>(stream.seed_and_step[0]);
  uint32_t key_low = static_cast<uint32_t>(seed), key_high = static_cast<uint32_t>(seed >> 32);
  uint32_t a = static_cast<uint32_t>(block), b = static_cast<uint32_t>(block >> 32);
  uint32_t c = static_cast<uint32_t>(stream.seed_and_step[1]), d = stream.id;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ key_low;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ key_high;
    d = static_cast<uint32_t>(first);
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return {{a, b, c, d}};
}

}  // namespace plimsoll::cuda
