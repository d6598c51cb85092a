#pragma once

// Elementwise functions of one to many operands. f32, bf16 and f16 compute in f32, f64 in f64, integers in 64 bits;
// every result rounds once. Results may overlap exactly an operand of their own size. F8 is not served.

#include "kernels/scalar.h"
#include "kernels/strides.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// The functions of kernels/elementwise.def, and what CUDA alone computes.
enum class Unary : uint8_t {
#define PLIMSOLL_UNARY(op, Name, formula) Name,
#define PLIMSOLL_UNARY_FORM(form, Name, formula) Name,
#include "kernels/elementwise.def"
  BitwiseNot,  // of integers alone
};

// y = f(x) on n elements; a and b are the op's attributes in their order (Selu: alpha, gamma; Clip: min, max).
[[nodiscard]] cudaError_t map_unary(Unary f, double a, double b, Scalar type, void* y, const void* x, int64_t n,
                                    cudaStream_t stream);

enum class UnaryGrad : uint8_t {
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) Name,
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) Name,
#include "kernels/elementwise.def"
};

// dx from what the forward kept (x or y) and dy; dx may be either.
[[nodiscard]] cudaError_t map_unary_grad(UnaryGrad f, Scalar type, void* dx, const void* kept, const void* dy,
                                         int64_t n, cudaStream_t stream);

// Tests of floats, and logical not of bools: y is bool.
enum class Test : uint8_t { IsNan, IsInf, IsNegativeInf, IsPositiveInf, Not };
[[nodiscard]] cudaError_t map_test(Test f, Scalar type, bool* y, const void* x, int64_t n, cudaStream_t stream);

enum class Binary : uint8_t {
#define PLIMSOLL_BINARY(op, Name, formula) Name,
#define PLIMSOLL_BINARY_FORM(form, Name, formula) Name,
#include "kernels/elementwise.def"
  ShiftLeft,
  ShiftRight,
};

// y = f(a, b); tensors of the nest: y (dense), a, b. `y_type` is bool for comparisons, else a's; b's type differs
// from a's in powers alone.
[[nodiscard]] cudaError_t map_binary(Binary f, const LoopNest<3>& nest, Scalar y_type, void* y, Scalar a_type,
                                     const void* a, Scalar b_type, const void* b, cudaStream_t stream);

// y = condition ? a : b on elements of 1, 2, 4 or 8 bytes; tensors of the nest: y, condition, a, b.
[[nodiscard]] cudaError_t where(const LoopNest<4>& nest, int element_bytes, void* y, const bool* condition,
                                const void* a, const void* b, cudaStream_t stream);

// Floats round to nearest even and become integers by truncation; integers wrap.
[[nodiscard]] cudaError_t cast_elements(Scalar y_type, void* y, Scalar x_type, const void* x, int64_t n,
                                        cudaStream_t stream);

struct CastTensor {
  void* y;
  const void* x;
  int64_t elements;
};
// `count` tensors at once, of f32 on one side and bf16 or f16 on the other: none may write what another reads or
// writes.
[[nodiscard]] cudaError_t cast_many(Scalar y_type, Scalar x_type, const CastTensor* tensors, int count,
                                    cudaStream_t stream);

// Bound by what a launch may take as arguments, 32 KiB.
inline constexpr int max_terms = 2048;
// The sum of up to max_terms tensors in their order. y may be any of them.
[[nodiscard]] cudaError_t add_many(Scalar type, void* y, const void* const* terms, int term_count, int64_t n,
                                   cudaStream_t stream);

}  // namespace plimsoll::cuda
