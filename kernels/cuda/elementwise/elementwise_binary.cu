#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"

// Serves the binary ops of kernels/elementwise.def, mod and bit_shift. y is written once; an operand is read once, or
// from the cache where it repeats. Functions of two operands with broadcasting. Sums and products of 16- and 32-bit
// floats have kernels of their own; other functions of these types share one, and all other types one that reads them
// by run-time type.

namespace plimsoll::cuda {
namespace {

template <typename C>
__device__ __forceinline__ C arithmetic(Binary f, C a, C b) {
  switch (f) {
#define PLIMSOLL_BINARY(op, Name, formula) \
  case Binary::Name:                       \
    return formula;
#define PLIMSOLL_BINARY_FORM(form, Name, formula) PLIMSOLL_BINARY(form, Name, formula)
#define PLIMSOLL_COMPARE(op, Name, formula)
#define PLIMSOLL_LOGIC(op, Name, formula)
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"
    default: return a;
  }
}

__host__ __device__ constexpr bool is_comparison(Binary f) {
  switch (f) {
#define PLIMSOLL_COMPARE(op, Name, formula) case Binary::Name:
#include "kernels/elementwise.def"
    return true;
    default: return false;
  }
}

template <typename Value>
__device__ bool compare(Binary f, Value a, Value b) {
  switch (f) {
#define PLIMSOLL_COMPARE(op, Name, formula) \
  case Binary::Name: {                      \
    return formula;                         \
  }
#include "kernels/elementwise.def"
    default: return false;
  }
}

template <Binary f>
struct Fixed {
  __device__ float operator()(float a, float b) const { return arithmetic(f, a, b); }
};
struct Chosen {
  Binary f;
  __device__ float operator()(float a, float b) const { return arithmetic(f, a, b); }
};
struct Compare {
  Binary f;
  __device__ bool operator()(float a, float b) const { return compare(f, a, b); }
};

template <typename T>
cudaError_t map_typed(Binary f, const LoopNest<3>& nest, void* to, const T* a, const T* b, cudaStream_t stream) {
  T* y = static_cast<T*>(to);
  if (is_comparison(f)) return map_broadcast(Compare{f}, nest, stream, static_cast<uint8_t*>(to), a, b);
  switch (f) {
    case Binary::Add: return map_broadcast(Fixed<Binary::Add>{}, nest, stream, y, a, b);
    case Binary::Sub: return map_broadcast(Fixed<Binary::Sub>{}, nest, stream, y, a, b);
    case Binary::Mul: return map_broadcast(Fixed<Binary::Mul>{}, nest, stream, y, a, b);
    case Binary::Div: return map_broadcast(Fixed<Binary::Div>{}, nest, stream, y, a, b);
    default: return map_broadcast(Chosen{f}, nest, stream, y, a, b);
  }
}

// ---- Integers, bools and f64 ----

// Squares repeatedly and wraps; a negative exponent gives 0 except for 1 and -1.
template <typename Value>
__device__ Value integer_power(Value a, Value exponent) {
  const auto e = static_cast<int64_t>(exponent);
  if (e < 0) return a == Value{1} ? Value{1} : a != static_cast<Value>(-1) ? Value{0} : e % 2 ? a : Value{1};
  uint64_t product = 1, factor = static_cast<uint64_t>(a);
  for (int64_t rest = e; rest > 0; rest /= 2, factor *= factor)
    if (rest % 2) product *= factor;
  return static_cast<Value>(product);
}

// x / 0 is 0, and dividing the smallest integer by -1 wraps.
template <typename Value>
__device__ Value integer_quotient(Value a, Value b) {
  if (b == 0) return 0;
  if (std::is_signed_v<Value> && b == static_cast<Value>(-1)) return static_cast<Value>(0 - static_cast<uint64_t>(a));
  return a / b;
}

template <typename Value>
__device__ Value integer_remainder(Value a, Value b, bool fmod_form) {
  if (b == 0 || b == static_cast<Value>(-1)) return 0;
  const Value rest = a % b;
  const bool other_sign = rest != 0 && is_negative(rest) != is_negative(b);
  return other_sign && !fmod_form ? rest + b : rest;
}

// A shift by the width or more leaves 0; zeros come in whatever the sign.
__device__ uint64_t shifted(Binary f, uint64_t a, uint64_t b, int width) {
  if (b >= static_cast<uint64_t>(width)) return 0;
  if (f == Binary::ShiftLeft) return a << b;
  return (width == 64 ? a : a & ((uint64_t{1} << width) - 1)) >> b;
}

__device__ int width_of(Scalar type) {
  return with_element(type, [](auto* element) { return static_cast<int>(8 * sizeof(*element)); });
}

template <typename Value>
__device__ Value integer_arithmetic(Binary f, Value a, Value b, Scalar type) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (f) {
    case Binary::Add: return static_cast<Value>(x + y);
    case Binary::Sub: return static_cast<Value>(x - y);
    case Binary::Mul: return static_cast<Value>(x * y);
    case Binary::Div: return integer_quotient(a, b);
    case Binary::Max: return a > b ? a : b;
    case Binary::Min: return a < b ? a : b;
    case Binary::Pow: return integer_power(a, b);
    case Binary::Mod: return integer_remainder(a, b, false);
    case Binary::Fmod: return integer_remainder(a, b, true);
#define PLIMSOLL_LOGIC(op, Name, formula) \
  case Binary::Name:                      \
    return static_cast<Value>(formula);
#define PLIMSOLL_BITWISE(op, Name, formula) PLIMSOLL_LOGIC(op, Name, formula)
#include "kernels/elementwise.def"
    default: return static_cast<Value>(shifted(f, x, y, width_of(type)));
  }
}

template <typename Value>
__global__ void __launch_bounds__(block_threads)
    any_binary_kernel(Binary f, const __grid_constant__ DeviceNest<3> nest, int64_t n, void* y, Scalar y_type,
                      AnyTensor a, AnyTensor b) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t at[3];
  nest.offsets(i, at);
  const Value left = load_any<Value>(a, at[1]), right = load_any<Value>(b, at[2]);
  if (is_comparison(f))
    static_cast<uint8_t*>(y)[i] = compare(f, left, right);
  else if constexpr (std::is_same_v<Value, double>)
    store_any(y, y_type, i, arithmetic(f, left, right));
  else
    store_any(y, y_type, i, integer_arithmetic(f, left, right, y_type));
}

template <typename Value>
cudaError_t map_any(Binary f, const LoopNest<3>& full, void* y, Scalar y_type, AnyTensor a, AnyTensor b,
                    cudaStream_t stream) {
  const LoopNest<3> nest = collapse(full);
  const int64_t n = nest.iterations();
  if (n == 0) return cudaSuccess;
  any_binary_kernel<Value><<<blocks_for(n), block_threads, 0, stream>>>(f, DeviceNest<3>(nest), n, y, y_type, a, b);
  return cudaGetLastError();
}

}  // namespace

cudaError_t map_binary(Binary f, const LoopNest<3>& nest, Scalar y_type, void* y, Scalar a_type, const void* a,
                       Scalar b_type, const void* b, cudaStream_t stream) {
  if (a_type == b_type) switch (a_type) {
      case Scalar::F32:
        return map_typed(f, nest, y, static_cast<const float*>(a), static_cast<const float*>(b), stream);
      case Scalar::BF16: return map_typed(f, nest, y, static_cast<const bf16*>(a), static_cast<const bf16*>(b), stream);
      case Scalar::F16: return map_typed(f, nest, y, static_cast<const f16*>(a), static_cast<const f16*>(b), stream);
      default: break;
    }
  const AnyTensor left{a, a_type}, right{b, b_type};
  if (is_float(a_type) || is_float(b_type)) return map_any<double>(f, nest, y, y_type, left, right, stream);
  if (a_type == Scalar::U64) return map_any<uint64_t>(f, nest, y, y_type, left, right, stream);
  return map_any<int64_t>(f, nest, y, y_type, left, right, stream);
}

}  // namespace plimsoll::cuda
