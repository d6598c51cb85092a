#include "runtime/data/sample_order.h"

#include "ir/support/philox.h"

#include <algorithm>
#include <bit>

// A Feistel network over the smallest power of two that holds all samples is a permutation of it; values past the last
// sample are permuted again until they are samples (cycle walking: Black and Rogaway 2002). Fewer than half of the
// values are such, so that a place takes fewer than two walks on average.

namespace plimsoll {
namespace {

// The finalizer of MurmurHash3 (Appleby 2011).
uint64_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccd;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

uint64_t low_bits(int count) { return (uint64_t{1} << count) - 1; }

// No epoch of training has this number, so that the split is a permutation of its own.
constexpr int64_t split_epoch = -1;

}  // namespace

SampleOrder::SampleOrder(int64_t samples, uint64_t seed, int64_t epoch)
    : samples_(static_cast<uint64_t>(std::max<int64_t>(samples, 1))) {
  const int bits = std::max(2, static_cast<int>(std::bit_width(samples_ - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  for (uint32_t i = 0; i < rounds; ++i) {
    const auto at = static_cast<uint64_t>(epoch);
    const PhiloxBlock block = philox({i, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0}, low, high);
    keys_[i] = uint64_t{block[1]} << 32 | block[0];
  }
}

// Each round swaps the halves and their widths.
uint64_t SampleOrder::permute(uint64_t value) const {
  uint64_t left = value >> right_bits_, right = value & low_bits(right_bits_);
  int left_bits = left_bits_;
  for (uint64_t key : keys_) {
    const uint64_t next = (left ^ mixed(right + key)) & low_bits(left_bits);
    left = right;
    right = next;
    left_bits = left_bits_ + right_bits_ - left_bits;
  }
  return left << right_bits_ | right;
}

int64_t SampleOrder::at(int64_t place) const {
  auto value = static_cast<uint64_t>(place);
  do {
    value = permute(value);
  } while (value >= samples_);
  return static_cast<int64_t>(value);
}

SamplePart::SamplePart(int64_t samples, double hold_out, Kind kind, uint64_t seed)
    : split_(samples, seed, split_epoch), is_whole_(hold_out <= 0 && kind == Kind::Training), samples_(samples) {
  const auto wished = static_cast<int64_t>(hold_out * static_cast<double>(samples) + 0.5);
  const int64_t held_out = hold_out <= 0 ? 0 : std::clamp<int64_t>(wished, std::min<int64_t>(1, samples), samples);
  first_ = kind == Kind::Training ? 0 : samples - held_out;
  samples_ = kind == Kind::Training ? samples - held_out : held_out;
}

}  // namespace plimsoll
