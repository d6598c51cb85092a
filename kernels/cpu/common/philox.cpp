#include "kernels/cpu/common/philox.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vectorised.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace plimsoll::cpu {

namespace {

constexpr int64_t tile_blocks = 32, tile_words = 4 * tile_blocks;
constexpr int64_t kept_tile_blocks = 8, kept_tile_words = 4 * kept_tile_blocks;

// A tile of consecutive blocks, one a vector lane.
template <uint32_t rounds, int64_t blocks>
PLIMSOLL_INLINE void make_blocks(const RandomStream& stream, uint64_t first_block, uint32_t* words) {
  const auto key_low = static_cast<uint32_t>(stream.seed), key_high = static_cast<uint32_t>(stream.seed >> 32);
  const uint32_t step = stream.step, id = stream.id;
#pragma omp simd
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t block = first_block + static_cast<uint64_t>(i);
    uint32_t a = static_cast<uint32_t>(block), b = static_cast<uint32_t>(block >> 32), c = step, d = id;
#pragma GCC unroll 10
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
      a = static_cast<uint32_t>(second >> 32) ^ b ^ (key_low + round * 0x9E3779B9);
      b = static_cast<uint32_t>(second);
      c = static_cast<uint32_t>(first >> 32) ^ d ^ (key_high + round * 0xBB67AE85);
      d = static_cast<uint32_t>(first);
    }
    words[4 * i] = a;
    words[4 * i + 1] = b;
    words[4 * i + 2] = c;
    words[4 * i + 3] = d;
  }
}

PLIMSOLL_VECTORISED void philox_tile(const RandomStream& stream, uint64_t first_block, uint32_t* words) {
  make_blocks<10, tile_blocks>(stream, first_block, words);
}
// Numbers of 16 bits, two a word, on little-endian machines in the order of their elements.
PLIMSOLL_VECTORISED void dropout_tile(const RandomStream& stream, uint64_t first_block, uint16_t* numbers) {
  uint32_t words[tile_words];
  make_blocks<dropout_rounds, tile_blocks>(stream, first_block, words);
  std::memcpy(numbers, words, sizeof words);
}
PLIMSOLL_VECTORISED void kept_tile(const RandomStream& stream, uint64_t first_block, uint32_t* words) {
  make_blocks<dropout_rounds, kept_tile_blocks>(stream, first_block, words);
}

uint32_t kept_word(const Dropout& dropout, const uint32_t* lanes) {
  uint32_t kept = ~0u;
  for (int64_t i = 0; i < 4 * dropout.blocks; ++i)
    kept = (kept & lanes[i]) | (dropout.threshold_zeros[i] & (kept | lanes[i]));
  return kept;
}

PLIMSOLL_VECTORISED void keep_or_drop(float* y, const float* x, const uint16_t* numbers, uint32_t dropped, float factor,
                                      int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = numbers[i] >= dropped ? x[i] * factor : 0.0f;
}

}  // namespace

void random_words(const RandomStream& stream, int64_t first, int64_t count, uint32_t* words) {
  uint32_t tile[tile_words];
  int64_t skip = first % 4;
  auto block = static_cast<uint64_t>(stream.first_block + first / 4);
  for (int64_t done = 0; done < count; block += tile_blocks, skip = 0) {
    philox_tile(stream, block, tile);
    const int64_t taken = std::min(tile_words - skip, count - done);
    std::memcpy(words + done, tile + skip, static_cast<size_t>(taken) * sizeof(uint32_t));
    done += taken;
  }
}

void kept_words(const RandomStream& stream, const Dropout& dropout, int64_t first, int64_t count, uint32_t* words) {
  const int64_t blocks = dropout.blocks, tile_count = kept_tile_blocks / blocks;
  uint32_t tile[kept_tile_words];
  for (int64_t done = 0; done < count; done += tile_count) {
    kept_tile(stream, static_cast<uint64_t>(stream.first_block + (first + done) * blocks), tile);
    for (int64_t i = 0; i < std::min(tile_count, count - done); ++i)
      words[done + i] = kept_word(dropout, tile + i * 4 * blocks);
  }
}

void dropout(const RandomStream& stream, const ElementDropout& dropout, float* y, const float* x, int64_t n) {
  if (dropout.dropped == 0) {
    if (y != x) std::copy_n(x, n, y);
    return;
  }
  constexpr int64_t tile_numbers = tile_blocks * ElementDropout::elements_per_block;
  const auto factor = static_cast<float>(dropout.factor);
  parallel_ranges(n, 8, [&](int64_t begin, int64_t end) {
    uint16_t numbers[tile_numbers];
    for (int64_t at = begin; at < end;) {
      const int64_t number = dropout.first_draw + at, skip = number % ElementDropout::elements_per_block;
      const int64_t count = std::min(tile_numbers - skip, end - at);
      dropout_tile(stream, static_cast<uint64_t>(number / ElementDropout::elements_per_block), numbers);
      keep_or_drop(y + at, x + at, numbers + skip, dropout.dropped, factor, count);
      at += count;
    }
  });
}

}  // namespace plimsoll::cpu
