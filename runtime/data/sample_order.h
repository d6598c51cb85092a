#pragma once

// The order in which the samples of a data set are read: each epoch is a permutation of its own, drawn from a seed and
// computed place by place. It takes no memory, however many samples there are, and any place is found at once, so that
// a run can resume anywhere.

#include <array>
#include <cstdint>

namespace plimsoll {

class SampleOrder {
 public:
  // `samples` is at least 1. `epoch` is any number; each gives another permutation.
  SampleOrder(int64_t samples, uint64_t seed, int64_t epoch);

  // The sample at `place`; both are in [0, samples).
  int64_t at(int64_t place) const;

 private:
  static constexpr int rounds = 8;  // even, so that the halves have their own widths again
  uint64_t permute(uint64_t value) const;

  uint64_t samples_;
  int left_bits_, right_bits_;
  std::array<uint64_t, rounds> keys_;
};

// The samples of one part of a data set: those to train with, or those held out to evaluate with. A seed decides which.
class SamplePart {
 public:
  enum class Kind : uint8_t { Training, HeldOut };
  // `hold_out` is the share that is held out, in [0, 1); above 0 it is at least one sample.
  SamplePart(int64_t samples, double hold_out, Kind kind, uint64_t seed);

  int64_t samples() const { return samples_; }
  int64_t at(int64_t index) const { return is_whole_ ? index : split_.at(first_ + index); }  // index in [0, samples())

 private:
  SampleOrder split_;
  bool is_whole_;
  int64_t first_ = 0, samples_;
};

}  // namespace plimsoll
