#pragma once

// What generated kernels of fused ops are written with. NVRTC compiles it without the toolkit's headers, so 16-bit
// floats are converted by instructions (compute capability 8.0 and newer). A run is what one thread reads or writes of
// a tensor: neighbouring elements, 16 bytes an access.

#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"

namespace plimsoll::cuda {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <typename T>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

// 16-bit floats are computed in f32, everything else in itself.
__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float widen(f16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
template <typename T>
__device__ T widen(T x) {
  return x;
}

// Rounds to nearest even.
template <typename T>
struct Narrow {
  template <typename From>
  static __device__ T of(From x) {
    return static_cast<T>(x);
  }
};
// Of x as a bf16 in the upper half. The instruction for pairs has several times the rate of the one for a single
// number.
__device__ inline uint32_t rounded_bits(float x) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x), "f"(0.0f));
  return pair;
}
template <>
struct Narrow<bf16> {
  static __device__ bf16 of(float x) { return {static_cast<uint16_t>(rounded_bits(x) >> 16)}; }
};
template <>
struct Narrow<f16> {
  static __device__ f16 of(float x) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
  }
};

// What x is once it has been stored as a T.
template <typename T, typename From>
__device__ auto rounded(From x) {
  if constexpr (is_bf16<T>)
    return __uint_as_float(rounded_bits(x));
  else
    return widen(Narrow<T>::of(x));
}

// x as a T that holds it as it is.
template <typename T, typename From>
__device__ T exact(From x) {
  if constexpr (is_bf16<T>)
    return {static_cast<uint16_t>(__float_as_uint(x) >> 16)};
  else
    return Narrow<T>::of(x);
}

template <typename T, int length>
struct Run {
  T at[length];
};

// Up to 16 bytes that one access moves, in registers as they are.
template <int bytes>
struct alignas(bytes) Word {
  uint32_t parts[bytes / 4];
};
template <>
struct Word<2> {
  uint16_t part;
};
template <>
struct Word<1> {
  uint8_t part;
};
template <typename T, int length>
using WordOf = Word<sizeof(T) * length % 16 == 0 ? 16 : sizeof(T) * length>;

// `count` elements, all of them as a rule; the run is aligned to its bytes, up to 16.
template <int length, typename T>
__device__ Run<T, length> load_run(const T* from, int count) {
  Run<T, length> run;
  if (count == length) {
    using Words = WordOf<T, length>;
    constexpr int words = sizeof(run) / sizeof(Words);
    Words as_words[words];
#pragma unroll
    for (int word = 0; word < words; ++word) as_words[word] = reinterpret_cast<const Words*>(from)[word];
    memcpy(run.at, as_words, sizeof run);
    return run;
  }
#pragma unroll
  for (int k = 0; k < length; ++k)
    if (k < count) run.at[k] = from[k];
  return run;
}

template <int length, typename T>
__device__ void store_run(T* to, const Run<T, length>& run, int count) {
  if (count == length) {
    using Words = WordOf<T, length>;
    constexpr int words = sizeof(run) / sizeof(Words);
    Words as_words[words];
    memcpy(as_words, run.at, sizeof run);
#pragma unroll
    for (int word = 0; word < words; ++word) reinterpret_cast<Words*>(to)[word] = as_words[word];
    return;
  }
#pragma unroll
  for (int k = 0; k < length; ++k)
    if (k < count) to[k] = run.at[k];
}

}  // namespace plimsoll::cuda
