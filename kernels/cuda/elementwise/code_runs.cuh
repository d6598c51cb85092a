#pragma once

// Runs of codes of 4 or 8 bits as whole words, and the numbers they stand for.

#include "kernels/cuda/common/element.cuh"

#include <optional>
#include <type_traits>

namespace plimsoll::cuda {

// Codes of 16 bytes of results of type T, so that each store of a warp writes 512 neighbouring bytes. With 32 bytes for
// each thread a store would write halves of sectors.
template <typename T>
inline constexpr int run_length = 16 / static_cast<int>(sizeof(T));

// A word has eight codes of 4 bits, or four of 8. Four codes of 4 bits are the low half of a word.
template <int bits, int length>
struct CodeRun {
  static constexpr int bytes = length * bits / 8, words = (bytes + 3) / 4;
  uint32_t word[words];

  __device__ static CodeRun load(const uint8_t* from) {
    using Word = std::conditional_t<bytes == 2, uint16_t, uint32_t>;
    CodeRun run;
    const Vector<Word, words> loaded = load_vector<words>(reinterpret_cast<const Word*>(from));
#pragma unroll
    for (int i = 0; i < words; ++i) run.word[i] = loaded.at[i];
    return run;
  }
  // Of two 4-bit codes in a byte the first is the low half, or with high_first the high one.
  template <bool high_first>
  __device__ uint32_t at(int k) const {
    if constexpr (bits == 8) return word[k / 4] >> k % 4 * 8 & 255;
    return word[0] >> (high_first ? k ^ 1 : k) * 4 & 15;
  }
};

// How codes become numbers: by a table, or as integers, with or without a sign, by arithmetic.
enum class CodeKind : uint8_t { Table, Integer };

// 2^23 as a float; an integer below it in the low bits makes the sum of both.
inline constexpr uint32_t counted_bits = 0x4B000000;
inline constexpr float counted_from = 8388608.0f;

// The number of a code is (code ^ flip) - flip, flip being the sign's bit or 0.
struct IntegerCodes {
  uint32_t flip = 0;

  // counted_from + (code ^ flip), exactly; minus `zero_of(0)` it is the number.
  __device__ float counted(uint32_t code) const { return __uint_as_float(counted_bits | (code ^ flip)); }
  __host__ __device__ float zero_of(float zero) const { return counted_from + static_cast<float>(flip) + zero; }

  template <int bits, int length>
  __device__ void counted(const CodeRun<bits, length>& run, float (&numbers)[length]) const {
    // The selected bytes are a code, two zeros, and the exponent of 2^23.
    if constexpr (bits == 8) {
#pragma unroll
      for (int k = 0; k < length; ++k)
        numbers[k] = __uint_as_float(__byte_perm(run.word[k / 4] ^ flip * 0x01010101, counted_bits, 0x7440 | k % 4));
    } else {
      const uint32_t flipped = run.word[0] ^ flip * 0x11111111;
      const uint32_t even = flipped & 0x0f0f0f0f, odd = flipped >> 4 & 0x0f0f0f0f;
#pragma unroll
      for (int k = 0; k < length; ++k)
        numbers[k] = __uint_as_float(__byte_perm(k % 2 == 0 ? even : odd, counted_bits, 0x7440 | k / 2));
    }
  }
};

// Whether that is what the values of all codes are.
inline std::optional<IntegerCodes> integer_codes(const float* values, int bits) {
  const uint32_t codes = 1u << bits;
  for (uint32_t flip : {0u, codes / 2}) {
    bool are_integers = true;
    for (uint32_t code = 0; code < codes; ++code)
      are_integers = are_integers && values[code] == static_cast<float>(code ^ flip) - static_cast<float>(flip);
    if (are_integers) return IntegerCodes{flip};
  }
  return std::nullopt;
}

// A scale as it stands in memory, so that several can be under way before the first is used: f32, bf16 or f16.
__device__ inline uint32_t load_bits(const void* numbers, Scalar type, int64_t at) {
  return type == Scalar::F32 ? static_cast<const uint32_t*>(numbers)[at] : static_cast<const uint16_t*>(numbers)[at];
}
__device__ inline float float_of(uint32_t bits, Scalar type) {
  if (type == Scalar::F16) return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  return __uint_as_float(type == Scalar::F32 ? bits : bits << 16);
}
__device__ inline float float_at(const void* numbers, Scalar type, int64_t at) {
  return float_of(load_bits(numbers, type, at), type);
}

}  // namespace plimsoll::cuda
