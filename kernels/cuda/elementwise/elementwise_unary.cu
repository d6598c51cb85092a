#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"

// Serves the unary ops of kernels/elementwise.def and their gradients, gelu, clip, bitwise_not, is_nan, is_inf and not.
// Every element is read and written once. Functions of one operand and the gradients of activations. What training runs
// over large activations has a kernel of its own for each float type; the rest share one kernel per type, which chooses
// the function as it runs.

namespace plimsoll::cuda {
namespace {

// exp(-x) overflows to infinity below x = -88, whose reciprocal is the right 0.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ double sigmoid(double x) { return 1 / (1 + exp(-x)); }

template <typename C>
__device__ C softplus(C x) {
  return fmax(x, C(0)) + log1p(exp(-fabs(x)));
}

template <typename C>
__device__ C clamp(C x, C low, C high) {
  if (x < low) x = low;
  return x > high ? high : x;
}

// The tanh form of gelu (Hendrycks and Gimpel 2016) is x * sigmoid(gelu_argument(x)): (1 + tanh(u)) / 2 = sigmoid(2u).
template <typename C>
__device__ C gelu_argument(C x) {
  return C(1.5957691216057308) * (x + C(0.044715) * x * x * x);
}

template <typename C>
__device__ C normal_distribution(C x) {
  return C(0.5) * (1 + erf(x * C(0.7071067811865476)));
}

// The standard normal distribution and its density at x, for results of 16 bits: below 0 the distribution is
// exp(-x^2 / 2) times a polynomial in t = 1 / (1 + 0.36 |x|) (the form of Hastings 1955), fitted to an error of
// 1e-6 of its value, in the tail as well. With erff, gelu of bf16 stays at 2.7 TB/s on an H200 that copies 4.2.
struct NormalLaw {
  float distribution, density;
};
__device__ NormalLaw normal_law(float x) {
  const float t = __fdividef(1.0f, 1.0f + 0.36f * fabsf(x)), exponential = __expf(-0.5f * x * x);
  float sum = 0.0470589285f;
  for (float c : {-0.179773854f, 0.180966553f, 0.0265407174f, 0.139722366f, 0.141771901f, 0.143713083f})
    sum = sum * t + c;
  const float tail = sum * t * exponential;
  return {x < 0 ? tail : 1 - tail, 0.398942280f * exponential};
}

template <typename C>
__device__ C gelu(C x) {
  return x * normal_distribution(x);
}

template <typename C>
__device__ C gelu_tanh(C x) {
  return x * sigmoid(gelu_argument(x));
}

template <typename C>
__device__ C sign(C x) {
  return C((x > 0) - (x < 0));
}

template <typename C>
__device__ C relu(C x) {
  return x < 0 ? C(0) : x;
}

template <typename C>
__device__ C leaky_relu(C x, C alpha) {
  return x > 0 ? x : alpha * x;
}

template <typename C>
__device__ C sixth_of(C x) {
  return x / 6;
}

template <typename C>
__device__ __forceinline__ C apply(Unary f, C x, C a, C b) {
  switch (f) {
#define PLIMSOLL_UNARY(op, Name, formula) \
  case Unary::Name:                       \
    return formula;
#define PLIMSOLL_UNARY_FORM(form, Name, formula) PLIMSOLL_UNARY(form, Name, formula)
#include "kernels/elementwise.def"
    default: return x;
  }
}

template <Unary f>
struct Fixed {
  __device__ float operator()(float x) const { return apply(f, x, 0.0f, 0.0f); }
};

struct NarrowGelu {
  __device__ float operator()(float x) const { return x * normal_law(x).distribution; }
};

template <typename C>
struct Chosen {
  Unary f;
  C a, b;
  __device__ C operator()(C x) const { return apply(f, x, a, b); }
};

template <typename T>
cudaError_t map_unary_typed(Unary f, double a, double b, void* to, const void* from, int64_t n, cudaStream_t stream) {
  T* y = static_cast<T*>(to);
  const T* x = static_cast<const T*>(from);
  switch (f) {
    case Unary::Exp: return map(Fixed<Unary::Exp>{}, n, y, x, stream);
    case Unary::Tanh: return map(Fixed<Unary::Tanh>{}, n, y, x, stream);
    case Unary::Relu: return map(Fixed<Unary::Relu>{}, n, y, x, stream);
    case Unary::Sigmoid: return map(Fixed<Unary::Sigmoid>{}, n, y, x, stream);
    case Unary::Silu: return map(Fixed<Unary::Silu>{}, n, y, x, stream);
    case Unary::Gelu:
      if constexpr (sizeof(T) == 2) return map(NarrowGelu{}, n, y, x, stream);
      return map(Fixed<Unary::Gelu>{}, n, y, x, stream);
    case Unary::GeluTanh: return map(Fixed<Unary::GeluTanh>{}, n, y, x, stream);
    default: return map(Chosen<float>{f, static_cast<float>(a), static_cast<float>(b)}, n, y, x, stream);
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

template <typename C>
__device__ C sigmoid_grad(C y, C dy) {
  return dy * (y * (1 - y));
}

template <typename C>
__device__ C silu_slope(C x) {
  const C s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

template <typename C>
__device__ C gelu_slope(C x) {
  return normal_distribution(x) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x);
}

template <typename C>
__device__ C gelu_tanh_slope(C x) {
  const C s = sigmoid(gelu_argument(x));
  return s + x * s * (1 - s) * C(1.5957691216057308) * (1 + C(3 * 0.044715) * x * x);
}

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

struct NarrowGeluGrad {
  __device__ float operator()(float x, float dy) const {
    const NormalLaw law = normal_law(x);
    return dy * (law.distribution + x * law.density);
  }
};

template <UnaryGrad f>
cudaError_t map_grad(Scalar type, void* dx, const void* kept, const void* dy, int64_t n, cudaStream_t stream) {
  return with_float(type, [&]<typename T>(T*) {
    using Slope = std::conditional_t<f == UnaryGrad::GeluGrad && sizeof(T) == 2, NarrowGeluGrad, Grad<f>>;
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
