#pragma once

// Loop nests on the device: from a flat index to one offset a tensor, with multiplications in place of divisions.

#include "kernels/cuda/common/element.cuh"
#include "kernels/strides.h"

namespace plimsoll::cuda {

// n / divisor for 0 <= n < 2^63 by a multiplication and a shift (Granlund and Montgomery 1994): with
// 2^(shift-1) < divisor <= 2^shift and magic = ceil(2^(63+shift) / divisor), the rounding of magic adds less
// than 1 / divisor to the quotient.
class Divider {
 public:
  Divider() = default;
  explicit Divider(int64_t divisor) : divisor_(static_cast<uint64_t>(divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    const auto one = static_cast<unsigned __int128>(1);
    magic_ = static_cast<uint64_t>(((one << (63 + shift_)) + divisor_ - 1) / divisor_);
  }

  // Divides n; n becomes the remainder.
  __device__ int64_t divide(int64_t& n) const {
    const uint64_t quotient = __umul64hi(2 * static_cast<uint64_t>(n), magic_) >> shift_;
    n -= static_cast<int64_t>(quotient * divisor_);
    return static_cast<int64_t>(quotient);
  }

 private:
  uint64_t divisor_ = 1, magic_ = uint64_t{1} << 63;
  uint32_t shift_ = 0;
};

// The same for 0 <= n < 2^31, in 32 bits. A divisor of 0 stands for an empty dimension, where nothing is divided.
class Divider32 {
 public:
  Divider32() = default;
  explicit Divider32(int32_t divisor) : divisor_(divisor > 0 ? static_cast<uint32_t>(divisor) : 1) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    magic_ = static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + divisor_ - 1) / divisor_);
  }

  __device__ int32_t quotient(int32_t n) const {
    return static_cast<int32_t>(__umulhi(2 * static_cast<uint32_t>(n), magic_) >> shift_);
  }
  // Rounds up; n <= 2^31 - divisor.
  __device__ int32_t quotient_up(int32_t n) const { return quotient(n + static_cast<int32_t>(divisor_) - 1); }
  // Divides n; n becomes the remainder.
  __device__ int32_t divide(int32_t& n) const {
    const int32_t result = quotient(n);
    n -= result * static_cast<int32_t>(divisor_);
    return result;
  }

 private:
  uint32_t divisor_ = 1, magic_ = uint32_t{1} << 31, shift_ = 0;
};

// Offsets of N tensors at the iterations of a nest, by number in row-major order.
template <int N>
struct DeviceNest {
  int rank = 0;
  Divider sizes[max_rank];
  int64_t strides[N][max_rank] = {};

  DeviceNest() = default;
  // Tensors [first, first + N) of a nest of at least one dimension and no empty one.
  template <int M>
  explicit DeviceNest(const LoopNest<M>& nest, int first = 0) : rank(nest.rank) {
    for (int d = 0; d < rank; ++d) {
      sizes[d] = Divider(nest.sizes[d]);
      for (int t = 0; t < N; ++t) strides[t][d] = nest.strides[first + t][d];
    }
  }

  __device__ void offsets(int64_t iteration, int64_t (&at)[N]) const {
    for (int t = 0; t < N; ++t) at[t] = 0;
    for (int d = rank - 1; d > 0; --d) {
      int64_t index = iteration;
      iteration = sizes[d].divide(index);
      for (int t = 0; t < N; ++t) at[t] += index * strides[t][d];
    }
    for (int t = 0; t < N; ++t) at[t] += iteration * strides[t][0];
  }
};

}  // namespace plimsoll::cuda
