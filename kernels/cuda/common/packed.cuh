#pragma once

// Elements that stay in the words they were loaded in until they are used. Of a Vector of 16-bit elements the compiler
// splits every one into a register of its own as soon as it has arrived: twice the registers for what is in flight.

#include "kernels/cuda/common/element.cuh"

namespace plimsoll::cuda {

template <typename T, int n>
struct Packed {
  static constexpr int words = (n * static_cast<int>(sizeof(T)) + 3) / 4;
  uint32_t word[words];

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) return __uint_as_float(word[i]);
    const uint32_t bits = i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u;
    if constexpr (std::is_same_v<T, bf16>) return __uint_as_float(bits);
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits >> 16)));
  }
};

template <int n, typename T>
__device__ Packed<T, n> load_packed(const T* from) {
  constexpr int bytes = n * static_cast<int>(sizeof(T));
  Packed<T, n> packed;
  if constexpr (bytes == 16) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    packed.word[0] = four.x, packed.word[1] = four.y, packed.word[2] = four.z, packed.word[3] = four.w;
  } else if constexpr (bytes == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    packed.word[0] = two.x, packed.word[1] = two.y;
  } else if constexpr (bytes == 4) {
    packed.word[0] = *reinterpret_cast<const uint32_t*>(from);
  } else {
    static_assert(bytes == 2, "16, 8, 4 or 2 bytes");
    packed.word[0] = *reinterpret_cast<const uint16_t*>(from);
  }
  return packed;
}

// Rounds to nearest even; the elements as they now stand in memory.
template <typename T, int n>
__device__ Packed<T, n> pack(const float (&values)[n]) {
  Packed<T, n> packed;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < n; ++i) packed.word[i] = __float_as_uint(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      const float low = values[i], high = values[(i + 1) % n];
      if constexpr (std::is_same_v<T, bf16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&packed.word[i / 2], &pair, sizeof pair);
      } else {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&packed.word[i / 2], &pair, sizeof pair);
      }
    }
  }
  return packed;
}

// Written so that the compiler does not store word by word, as it does at times.
template <typename T, int n>
__device__ void store_packed(T* to, const Packed<T, n>& packed) {
  constexpr int bytes = n * static_cast<int>(sizeof(T));
  if constexpr (bytes == 16)
    __stwb(reinterpret_cast<uint4*>(to), make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]));
  else if constexpr (bytes == 8)
    __stwb(reinterpret_cast<uint2*>(to), make_uint2(packed.word[0], packed.word[1]));
  else if constexpr (bytes == 4)
    *reinterpret_cast<uint32_t*>(to) = packed.word[0];
  else
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(packed.word[0]);
}

}  // namespace plimsoll::cuda
