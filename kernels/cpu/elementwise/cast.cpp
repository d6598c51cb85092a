#include "kernels/cpu/elementwise/cast.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

// One loop for every pair of types, over storage types that know how to become a number and back.

namespace plimsoll::cpu {

namespace {

struct Bf16 {
  uint16_t bits;
  PLIMSOLL_INLINE float number() const { return float_of(static_cast<int32_t>(static_cast<uint32_t>(bits) << 16)); }
  PLIMSOLL_INLINE static Bf16 of(float value) {
    const auto wide = static_cast<uint32_t>(bits_of(value));
    const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    const uint32_t quiet = (wide >> 16) | 0x40;
    return {static_cast<uint16_t>((wide & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
  }
};

struct F16 {
  uint16_t bits;
  PLIMSOLL_INLINE float number() const {
    // The exponent moves up by 112 through a multiplication, which also normalises subnormals.
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const float scaled = float_of(static_cast<int32_t>(magnitude)) * 0x1p112f;
    const uint32_t finite = static_cast<uint32_t>(bits_of(scaled));
    const uint32_t wide = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : finite;
    return float_of(static_cast<int32_t>(wide | static_cast<uint32_t>(bits & 0x8000) << 16));
  }
  PLIMSOLL_INLINE static F16 of(float value) {
    const auto wide = static_cast<uint32_t>(bits_of(value));
    const uint32_t magnitude = wide & 0x7fffffff;
    const uint32_t normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 1/2 lines a subnormal's bits up with the low mantissa and rounds them.
    const uint32_t subnormal =
        static_cast<uint32_t>(bits_of(float_of(static_cast<int32_t>(magnitude)) + 0.5f)) - 0x3f000000;
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? 0x7e00 : half;
    return {static_cast<uint16_t>(half | ((wide >> 16) & 0x8000))};
  }
};

struct Boolean {
  uint8_t bits;
};

template <typename T>
PLIMSOLL_INLINE auto number_of(T value) {
  if constexpr (requires { value.number(); })
    return value.number();
  else if constexpr (requires { value.bits; })
    return static_cast<uint8_t>(value.bits != 0);
  else
    return value;
}

template <typename To, typename Number>
PLIMSOLL_INLINE To element_of(Number value) {
  if constexpr (requires { To::of(0.0f); })
    return To::of(static_cast<float>(value));
  else if constexpr (requires(To to) { to.bits; })
    return To{static_cast<uint8_t>(value != 0)};
  else if constexpr (std::is_floating_point_v<Number> && std::is_integral_v<To>)
    return static_cast<To>(static_cast<int64_t>(value));  // wraps, where a direct conversion would be undefined
  else
    return static_cast<To>(value);
}

template <typename To, typename From>
PLIMSOLL_INLINE void convert(To* to, const From* from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = element_of<To>(number_of(from[i]));
}

// The pairs mixed precision lives on, compiled per instruction set.
PLIMSOLL_VECTORISED void convert_range(Bf16* to, const float* from, int64_t n) { convert(to, from, n); }
PLIMSOLL_VECTORISED void convert_range(float* to, const Bf16* from, int64_t n) { convert(to, from, n); }
PLIMSOLL_VECTORISED void convert_range(F16* to, const float* from, int64_t n) { convert(to, from, n); }
PLIMSOLL_VECTORISED void convert_range(float* to, const F16* from, int64_t n) { convert(to, from, n); }
PLIMSOLL_VECTORISED void convert_range(float* to, const int64_t* from, int64_t n) { convert(to, from, n); }
PLIMSOLL_VECTORISED void convert_range(float* to, const Boolean* from, int64_t n) { convert(to, from, n); }

template <typename To, typename From>
void convert_range(To* to, const From* from, int64_t n) {
  convert(to, from, n);
}

template <typename T>
PLIMSOLL_INLINE void round_all(float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = T::of(x[i]).number();
}
PLIMSOLL_VECTORISED void round_to_bf16(float* x, int64_t n) { round_all<Bf16>(x, n); }
PLIMSOLL_VECTORISED void round_to_f16(float* x, int64_t n) { round_all<F16>(x, n); }

template <typename Visit>
void with_storage(Scalar type, Visit&& visit) {
  switch (type) {
    case Scalar::F64: return visit(double{});
    case Scalar::F32: return visit(float{});
    case Scalar::BF16: return visit(Bf16{});
    case Scalar::F16: return visit(F16{});
    case Scalar::I64: return visit(int64_t{});
    case Scalar::I32: return visit(int32_t{});
    case Scalar::I16: return visit(int16_t{});
    case Scalar::I8: return visit(int8_t{});
    case Scalar::U32: return visit(uint32_t{});
    case Scalar::U16: return visit(uint16_t{});
    case Scalar::U8: return visit(uint8_t{});
    case Scalar::Bool: return visit(Boolean{});
    default: return;
  }
}

}  // namespace

void round_floats(Scalar type, float* x, int64_t n) { type == Scalar::BF16 ? round_to_bf16(x, n) : round_to_f16(x, n); }

void cast_elements(void* to, Scalar to_type, const void* from, Scalar from_type, int64_t n) {
  with_storage(to_type, [&](auto to_element) {
    with_storage(from_type, [&](auto from_element) {
      using To = decltype(to_element);
      using From = decltype(from_element);
      parallel_ranges(n, 1, [&](int64_t begin, int64_t end) {
        convert_range(static_cast<To*>(to) + begin, static_cast<const From*>(from) + begin, end - begin);
      });
    });
  });
}

}  // namespace plimsoll::cpu
