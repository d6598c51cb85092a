#pragma once

// Reductions over some axes of a float tensor, in f32 and in a fixed order, by one stage or two.

#include "kernels/cuda/reduce/reduce_plan.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

enum class Reduction : uint8_t { Sum, Mean, Max, Min, Product };

struct ReduceCall {
  Reduction reduction;
  AlternatingShape shape;
  const void* x;
  void* y;
  Scalar x_type, y_type;
  float* workspace;  // ReductionPlan::workspace() floats
};
[[nodiscard]] cudaError_t reduce(const ReduceCall& call, cudaStream_t stream);

// The same of int32 or int64, whose type y has too: sums, and maxima and minima of something. No workspace.
[[nodiscard]] cudaError_t reduce_integers(const ReduceCall& call, cudaStream_t stream);

// The sum of squares over all elements of `count` tensors of one type, in f32.
struct SquaresCall {
  const void* const* x;
  const int64_t* elements;
  int count;
  Scalar x_type;
  float* y;
  float* workspace;  // squares_parts(elements, squares_block(sum of elements)) floats a tensor
};
[[nodiscard]] cudaError_t sum_squares(const SquaresCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
