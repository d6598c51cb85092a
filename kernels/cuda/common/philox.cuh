#pragma once

// Philox4x32 (Salmon et al. 2011) on the device: the numbers of the compiler's own generator.

#include "kernels/cuda/elementwise/random.h"

namespace plimsoll::cuda {

struct PhiloxBlock {
  uint32_t lanes[4];
};

// The generator of a stream, of the stream's blocks from 0 on.
struct Philox {
  uint32_t key_low = 0, key_high = 0, step = 0, id = 0;

  __device__ Philox() {}
  __device__ explicit Philox(const RandomStream& stream)
      : step(static_cast<uint32_t>(stream.seed_and_step[1])), id(stream.id) {
    const auto seed = static_cast<uint64_t>(stream.seed_and_step[0]);
    key_low = static_cast<uint32_t>(seed);
    key_high = static_cast<uint32_t>(seed >> 32);
  }

  // Neighbouring blocks from `index` on, which share the keys of the rounds.
  template <int rounds, int count>
  __device__ void blocks(PhiloxBlock (&made)[count], uint64_t index) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const uint64_t at = index + static_cast<unsigned>(i);
      made[i] = {{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), step, id}};
    }
    uint32_t low = key_low, high = key_high;
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        auto& [a, b, c, d] = made[i].lanes;
        const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
        a = static_cast<uint32_t>(second >> 32) ^ b ^ low;
        b = static_cast<uint32_t>(second);
        c = static_cast<uint32_t>(first >> 32) ^ d ^ high;
        d = static_cast<uint32_t>(first);
      }
      low += 0x9E3779B9;
      high += 0xBB67AE85;
    }
  }
};

// Block `index` of what the stream has from its first block on.
__device__ inline PhiloxBlock philox(const RandomStream& stream, int64_t index) {
  PhiloxBlock made[1];
  Philox(stream).blocks<10>(made, static_cast<uint64_t>(stream.first_block + index));
  return made[0];
}

// Dropout's numbers of a run of elements, of a stream from its block 0 on.
template <int length>
struct Draws {
  static constexpr int together = ElementDropout::elements_per_block, blocks = (length + together - 1) / together;
  static constexpr int words = (length + 1) / 2;  // with two numbers each
  static_assert(length % together == 0 || together % length == 0);
  uint32_t word[words];

  // `first`: the number of the run's first element, a multiple of the length or, where the run is longer than 4, of 4.
  __device__ Draws(const RandomStream& stream, int64_t first) {
    const Philox random(stream);
    PhiloxBlock made[blocks];
    const auto block = static_cast<uint64_t>(first / together);
    random.blocks<dropout_rounds>(made, block);
    const int place = static_cast<int>(first % together);
    if constexpr (length < together) {
      const auto& lanes = made[0].lanes;
      word[0] = place & 4 ? (place & 2 ? lanes[3] : lanes[2]) : (place & 2 ? lanes[1] : lanes[0]);
      if constexpr (length == 4) word[1] = place & 4 ? lanes[3] : lanes[1];
      if constexpr (length == 1) word[0] >>= 16 * (place & 1);
    } else {
#pragma unroll
      for (int i = 0; i < words; ++i) word[i] = made[i / 4].lanes[i % 4];
      if (place == 0) return;  // as a rule; else half a block further, in the whole launch
      PhiloxBlock last[1];
      random.blocks<dropout_rounds>(last, block + blocks);
#pragma unroll
      for (int i = 0; i < words; ++i) word[i] = i + 2 < words ? word[i + 2] : last[0].lanes[i + 2 - words];
    }
  }

  template <typename T>
  __device__ T keep(int k, T x, uint32_t dropped, T factor) const {
    return (word[k / 2] >> 16 * (k % 2) & 0xffff) >= dropped ? x * factor : T(0);
  }
};

}  // namespace plimsoll::cuda
