#pragma once

#include "kernels/cuda/matmul/weight_gradient_sizes.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// Rows of x [..., width].
inline int64_t rows_of(const Type& x) { return element_count(llvm::ArrayRef<int64_t>(x.shape).drop_back()); }

// The batch of a matmul: steps of whole matrices of y, a and b.
LoopNest<3> matmul_batch(const Type& y, const Type& a, const Type& b);

// dW [K, N] = x^T dy, or with transpose_w [N, K] = dy^T x: operand `left` is read down its columns either way.
struct WeightGradientSides {
  llvm::StringRef left = "x", right = "dy";
  explicit WeightGradientSides(const OpCall& call) {
    if (call.get_int("transpose_w")) std::swap(left, right);
  }
};

// The same for our own kernel.
cuda::WeightGradientSizes weight_gradient_sizes(const OpCall& call);

// The library's kernels for 16-bit operands are fast where sizes are multiples of 16 bytes.
inline constexpr int64_t product_alignment = 8;
inline int64_t aligned_columns(int64_t columns) { return columns - columns % product_alignment; }

}  // namespace plimsoll
