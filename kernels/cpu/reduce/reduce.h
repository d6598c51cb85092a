#pragma once

// Reductions over any set of axes of an f32 tensor.

#include "kernels/strides.h"

#include <cstdint>

namespace plimsoll::cpu {

enum class Reduction : uint8_t { Sum, Mean, Max, Min, Product };

// One dimension a step of the nest, outermost first; the mask says which are reduced. y is dense over the
// kept ones.
struct ReductionShape {
  int rank = 0;
  int64_t sizes[max_rank];
  bool reduced[max_rank];
};

void reduce(Reduction kind, const ReductionShape& shape, float* y, const float* x);

// sum x^2 over n elements in sum_squares_partials(n) parts, to be added up in their order; gives the end of them.
int64_t sum_squares_partials(int64_t n);
double* partial_sums_of_squares(double* partials, const float* x, int64_t n);

}  // namespace plimsoll::cpu
