#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"

// Serves the unary ops of kernels/elementwise.def and their gradients, gelu, clip, bitwise_not, is_nan, is_inf and not.
// Every element is read and written once. Functions of one operand and the gradients of activations. What training runs
// over large activations has a kernel of its own for each float type. The rest share two kernels per type, which choose
// the function as they run: one of functions of a few instructions, and one of all others, whose code is so long that a
// launch takes 20 us to fetch what it runs of it.

namespace plimsoll::cuda {
namespace {

__host__ __device__ constexpr bool is_short(Unary f) {
  switch (f) {
    case Unary::Neg:
    case Unary::Abs:
    case Unary::Sign:
    case Unary::Floor:
    case Unary::Ceil:
    case Unary::Round:
    case Unary::Sqrt:
    case Unary::Rsqrt:
    case Unary::Reciprocal:
    case Unary::Relu:
    case Unary::Softsign:
    case Unary::LeakyRelu:
    case Unary::HardSigmoid:
    case Unary::HardSwish:
    case Unary::ThresholdedRelu:
    case Unary::Shrink:
    case Unary::Clip: return true;
    default: return false;
  }
}

// Of short functions alone, or of all.
template <bool only_short, typename C>
__device__ __forceinline__ C apply(Unary f, C x, C a, C b) {
  switch (f) {
#define PLIMSOLL_UNARY(op, Name, formula)                 \
  case Unary::Name:                                       \
    if constexpr (!only_short || is_short(Unary::Name)) { \
      return formula;                                     \
    } else {                                              \
      return x;                                           \
    }
#define PLIMSOLL_UNARY_FORM(form, Name, formula) PLIMSOLL_UNARY(form, Name, formula)
#include "kernels/elementwise.def"
    default: return x;
  }
}

template <Unary f>
struct Fixed {
  __device__ float operator()(float x) const { return apply<false>(f, x, 0.0f, 0.0f); }
};

struct NarrowGelu {
  __device__ float operator()(float x) const { return narrow_gelu(x); }
};
struct NarrowGeluTanh {
  __device__ float operator()(float x) const { return narrow_gelu_tanh(x); }
};
template <bool is_cosine>
struct NarrowSine {
  __device__ float operator()(float x) const { return narrow_sine<is_cosine>(x); }
};

template <typename C, bool only_short = false>
struct Chosen {
  Unary f;
  C a, b;
  __device__ C operator()(C x) const { return apply<only_short>(f, x, a, b); }
};

template <typename T>
cudaError_t map_unary_typed(Unary f, double a, double b, void* to, const void* from, int64_t n, cudaStream_t stream) {
  T* y = static_cast<T*>(to);
  const T* x = static_cast<const T*>(from);
  const auto first = static_cast<float>(a), second = static_cast<float>(b);
  if constexpr (sizeof(T) == 2) {
    if (f == Unary::Sin) return map(NarrowSine<false>{}, n, y, x, stream);
    if (f == Unary::Cos) return map(NarrowSine<true>{}, n, y, x, stream);
  }
  switch (f) {
    case Unary::HardSwish: return map(Fixed<Unary::HardSwish>{}, n, y, x, stream);
    case Unary::Exp: return map(Fixed<Unary::Exp>{}, n, y, x, stream);
    case Unary::Tanh: return map(Fixed<Unary::Tanh>{}, n, y, x, stream);
    case Unary::Relu: return map(Fixed<Unary::Relu>{}, n, y, x, stream);
    case Unary::Sigmoid: return map(Fixed<Unary::Sigmoid>{}, n, y, x, stream);
    case Unary::Silu: return map(Fixed<Unary::Silu>{}, n, y, x, stream);
    case Unary::Gelu:
      if constexpr (sizeof(T) == 2) return map(NarrowGelu{}, n, y, x, stream);
      return map(Fixed<Unary::Gelu>{}, n, y, x, stream);
    case Unary::GeluTanh:
      if constexpr (sizeof(T) == 2) return map(NarrowGeluTanh{}, n, y, x, stream);
      return map(Fixed<Unary::GeluTanh>{}, n, y, x, stream);
    default:
      if (is_short(f)) return map(Chosen<float, true>{f, first, second}, n, y, x, stream);
      return map(Chosen<float>{f, first, second}, n, y, x, stream);
  }
}

// ---- Integers, by run-time type ----

// Bounds are floats; an element keeps its value where it lies within.
template <typename Value>
__device__ Value clip_integer(Value x, double low, double high) {
  if (static_cast<double>(x) < low) x = static_cast<Value>(low);
  return static_cast<double>(x) > high ? static_cast<Value>(high) : x;
}

template <typename Value>
__global__ void integer_unary_kernel(Unary f, double a, double b, Scalar type, void* y, const void* x, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  const Value value = load_any<Value>({x, type}, i);
  const auto negative = static_cast<Value>(0 - static_cast<uint64_t>(value));
  Value result = value;
  if (f == Unary::Neg) result = negative;
  if (f == Unary::Abs) result = is_negative(value) ? negative : value;
  if (f == Unary::Sign) result = static_cast<Value>((value > 0) - is_negative(value));
  if (f == Unary::Clip) result = clip_integer(value, a, b);
  if (f == Unary::BitwiseNot) result = ~value;
  store_any(y, type, i, result);
}

// ---- Gradients ----

template <UnaryGrad f>
struct Grad {
  template <typename C>
  __device__ C operator()(C x, C dy) const {
    switch (f) {
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) \
  case UnaryGrad::Name:                        \
    return formula;
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) PLIMSOLL_UNARY_GRAD(form, Name, formula)
#include "kernels/elementwise.def"
    }
    return C(0);
  }
};

// Those for 16-bit results.
template <UnaryGrad f>
struct NarrowGrad : Grad<f> {};
template <>
struct NarrowGrad<UnaryGrad::GeluGrad> {
  __device__ float operator()(float x, float dy) const { return dy * narrow_gelu_slope(x); }
};
template <>
struct NarrowGrad<UnaryGrad::GeluTanhGrad> {
  __device__ float operator()(float x, float dy) const { return dy * narrow_gelu_tanh_slope(x); }
};

template <UnaryGrad f>
cudaError_t map_grad(Scalar type, void* dx, const void* kept, const void* dy, int64_t n, cudaStream_t stream) {
  return with_float(type, [&]<typename T>(T*) {
    using Slope = std::conditional_t<sizeof(T) == 2, NarrowGrad<f>, Grad<f>>;
    return map_pairs(Slope{}, n, static_cast<T*>(dx), static_cast<const T*>(kept), static_cast<const T*>(dy), stream);
  });
}

// ---- Tests ----

__global__ void test_kernel(Test f, bool* y, AnyTensor x, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  const double value = load_any<double>(x, i);
  const bool above = f != Test::IsNegativeInf, below = f != Test::IsPositiveInf;
  if (f == Test::IsNan)
    y[i] = isnan(value);
  else if (f == Test::Not)
    y[i] = value == 0;
  else
    y[i] = isinf(value) && (value > 0 ? above : below);
}

}  // namespace

cudaError_t map_unary(Unary f, double a, double b, Scalar type, void* y, const void* x, int64_t n,
                      cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  switch (type) {
    case Scalar::F64:
      return map(Chosen<double>{f, a, b}, n, static_cast<double*>(y), static_cast<const double*>(x), stream);
    case Scalar::F32: return map_unary_typed<float>(f, a, b, y, x, n, stream);
    case Scalar::BF16: return map_unary_typed<bf16>(f, a, b, y, x, n, stream);
    case Scalar::F16: return map_unary_typed<f16>(f, a, b, y, x, n, stream);
    case Scalar::U64:
      integer_unary_kernel<uint64_t><<<blocks_for(n), block_threads, 0, stream>>>(f, a, b, type, y, x, n);
      return cudaGetLastError();
    default:
      integer_unary_kernel<int64_t><<<blocks_for(n), block_threads, 0, stream>>>(f, a, b, type, y, x, n);
      return cudaGetLastError();
  }
}

cudaError_t map_unary_grad(UnaryGrad f, Scalar type, void* dx, const void* kept, const void* dy, int64_t n,
                           cudaStream_t stream) {
  switch (f) {
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) \
  case UnaryGrad::Name:                        \
    return map_grad<UnaryGrad::Name>(type, dx, kept, dy, n, stream);
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) PLIMSOLL_UNARY_GRAD(form, Name, formula)
#include "kernels/elementwise.def"
  }
  return cudaErrorInvalidValue;
}

cudaError_t map_test(Test f, Scalar type, bool* y, const void* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  test_kernel<<<blocks_for(n), block_threads, 0, stream>>>(f, y, {x, type}, n);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
